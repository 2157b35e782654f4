"""All tasks of a study on one machine, one after another and side by side."""

import os
import subprocess
import sys

import pytest
from rich.console import Console

from timetrial.runner.core.errors import Exit
from timetrial.runner.launch import whole_study
from timetrial.runner.launch.rank_pool import RankPool

QUIET = Console(quiet=True)


def progress_of(study):
    return [study.state(task).progress for task in study.tasks()]


@pytest.mark.parametrize(
    ("devices", "size", "most", "parts"),
    [
        ("0123", 1, 9, ["0", "1", "2", "3"]),
        ("0123", 1, 2, ["0", "1"]),
        ("01234", 2, 9, ["01", "23"]),
        ("01", 4, 9, ["01"]),
        ("01", 0, 3, ["0", "1"]),
    ],
)
def test_each_process_sees_devices_of_its_own(devices, size, most, parts):
    assert ["".join(part) for part in whole_study._parts(list(devices), size, most)] == parts


@pytest.mark.integration
def test_tasks_run_in_turn_and_those_of_others_are_passed_over(plan_study):
    study = plan_study("seed=1,2,3")
    first, second, _ = study.tasks()
    study.run_dir(first).path.mkdir(parents=True)
    with study.run_dir(first).locked(), RankPool(for_sweep=True) as pool:
        assert whole_study.run_in_turn(study, QUIET, pool) == Exit.TARGET_NOT_REACHED
        assert progress_of(study) == ["running", "done", "done"]
    with RankPool() as pool:
        assert whole_study.run_in_turn(study, QUIET, pool, gpus=second.num_gpus + 1) == Exit.TARGET_REACHED
        assert progress_of(study) == ["waiting", "done", "done"]


@pytest.mark.integration
def test_a_failing_task_does_not_keep_the_next_one_from_running(plan_study):
    study = plan_study("seed=1,2")
    path = study.run_dir(study.tasks()[0]).path
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("seed: [")  # which no run resumes
    with RankPool() as pool:
        assert whole_study.run_in_turn(study, QUIET, pool) not in (Exit.TARGET_REACHED, Exit.STOPPED)
    assert progress_of(study) == ["waiting", "done"]


@pytest.mark.integration
def test_tasks_run_side_by_side(plan_study, monkeypatch):
    study = plan_study("seed=1,2")
    tasks = study.tasks()
    ended = whole_study.run_side_by_side(study.path, 3, tasks, ["0", "1"], "TIMETRIAL_TEST_DEVICES")
    assert ended == Exit.TARGET_NOT_REACHED
    assert progress_of(study) == ["done", "done"]
    command = [sys.executable, "-P", "-m", "timetrial", "batch", "run", str(study.path)]
    completed = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert (completed.returncode, completed.stdout) == (Exit.TARGET_REACHED, "")
