"""Studies: what is planned, and that every task comes to one result whatever its attempts come to."""

import os
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

from timetrial.runner.cli.batch import _ranges
from timetrial.runner.core.errors import ConfigurationError, Exit, OutOfMemory, RunDirLocked, RunError
from timetrial.runner.launch.batch import Study
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunState

TINY = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=2048",
    "recipe.max_epochs=2",
    "recipe.target.v05.hit_rate=0.999",
    "launcher=inline",
]
QUIET = Console(quiet=True)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """planned(*overrides) -> a study of tiny runs below tmp_path, given up after two failures."""
    monkeypatch.chdir(tmp_path)

    def plan(*overrides):
        study = Study(tmp_path / "study", max_attempts=2)
        study.plan([*TINY, *overrides])
        return study

    return plan


def words(study):
    return [study.state(task).progress for task in study.tasks()]


def test_a_plan_is_the_sweep_in_hydras_order(planned):
    study = planned("precision=fp32,bf16", "seed=range(1,4)")
    tasks = study.tasks()
    assert [task.overrides[-2:] for task in tasks] == [
        (f"precision={precision}", f"seed={seed}") for precision in ("fp32", "bf16") for seed in (1, 2, 3)
    ]
    assert [task.name for task in tasks][::5] == ["0-precision-fp32-seed-1", "5-precision-bf16-seed-3"]
    assert words(study) == ["waiting"] * 6


def test_a_plan_is_written_once(planned, tmp_path):
    study = planned("seed=1,2")
    manifest = tmp_path / "study" / "manifest.txt"
    before = manifest.read_text(), manifest.stat().st_mtime_ns
    planned("seed=1,2")
    assert (manifest.read_text(), manifest.stat().st_mtime_ns) == before
    with pytest.raises(ConfigurationError, match="plans other runs: name another folder"):
        study.plan([*TINY, "seed=1,2,3"])
    assert manifest.read_text() == before[0]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["round=v05,v07"], r"round=v07: NCF was not part of MLPerf round v07"),
        (["nonsense=1"], "nonsense is not set here"),
        (["run_dir=here"], "run_dir is chosen by the study"),
        (["seed=one,two"], "'one'"),
    ],
)
def test_what_could_not_run_is_refused_before_anything_is_submitted(planned, tmp_path, overrides, said):
    with pytest.raises(ConfigurationError, match=said):
        planned(*overrides)
    assert not (tmp_path / "study").exists()


def test_an_element_with_a_result_is_left_alone(planned):
    study = planned("seed=1,2")
    first, _ = study.tasks()
    assert study.run(first, QUIET) == Exit.TARGET_NOT_REACHED
    log = next(study.run_dir(first).path.glob("result_1.txt")).read_bytes()
    assert study.run(first, QUIET) == Exit.TARGET_NOT_REACHED
    assert next(study.run_dir(first).path.glob("result_1.txt")).read_bytes() == log
    assert words(study) == ["done", "waiting"]


def test_a_result_whose_launcher_was_killed_is_closed_and_not_run_again(planned):
    study = planned("seed=1")
    (task,) = study.tasks()
    study.run(task, QUIET)
    folder = study.run_dir(task)
    before = folder.record()
    folder.update_record(state=RunState.RUNNING, verdict=None)
    assert words(study) == ["waiting"]
    assert study.run(task, QUIET) == Exit.TARGET_NOT_REACHED
    assert folder.record().verdict == before.verdict
    assert folder.record().restarts == 0
    assert words(study) == ["completed_epochs"]


def test_out_of_memory_halves_the_micro_batch_in_a_new_attempt(planned, tmp_path, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    whole = NCF.compute_loss

    def with_little_room(self, model, batch):
        if batch.weight > 600:
            torch.empty(2**60)  # the allocator's own refusal
        return whole(self, model, batch)

    monkeypatch.setattr(NCF, "compute_loss", with_little_room)
    study = planned("seed=1")
    study._max_attempts = 4
    (task,) = study.tasks()
    assert study.run(task, QUIET) == Exit.TARGET_NOT_REACHED
    assert "batch_size: 512" in study.run_dir(task).config.read_text()
    kept = [read_record(tmp_path / "study/attempts/0" / number) for number in ("1", "2")]
    assert [record.exit_code for record in kept] == [Exit.OUT_OF_MEMORY] * 2
    assert len(list((tmp_path / "study" / "runs").rglob("result_*.txt"))) == 1
    assert len(list((tmp_path / "study" / "attempts").rglob("result_*.txt"))) == 2
    assert words(study) == ["completed_epochs"]


def test_an_element_that_fits_nowhere_is_given_up_and_named(planned, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    monkeypatch.setattr(NCF, "compute_loss", lambda *_: torch.empty(2**60))
    study = planned("seed=1")
    (task,) = study.tasks()
    with pytest.raises(RunError, match=r"0 has failed 2 times.*raise --attempts.*tuning.micro_batch_size"):
        study.run(task, QUIET)
    assert words(study) == ["failed"]
    assert len(list(study.runs.rglob("result_*.txt"))) == 1  # the last failure stays, and counts
    study._max_attempts = 3
    assert words(study) == ["waiting"]


def test_a_micro_batch_of_one_cannot_be_halved(planned, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    monkeypatch.setattr(NCF, "compute_loss", lambda *_: torch.empty(2**60))
    study = planned("seed=1", "tuning.micro_batch_size=1", "recipe.data.generate.num_users=20")
    (task,) = study.tasks()
    with pytest.raises(RunError, match="failed 2 times") as caught:
        study.run(task, QUIET)
    assert not isinstance(caught.value, OutOfMemory)


def test_a_defect_is_tried_again_from_the_checkpoint(planned, tmp_path, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    score, calls = NCF.score, []

    def once_broken(self, parts):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the file server is away")
        return score(self, parts)

    monkeypatch.setattr(NCF, "score", once_broken)
    study = planned("seed=1", "checkpoint.every_seconds=0", "engine.warm_up=false")
    (task,) = study.tasks()
    assert study.run(task, QUIET) == Exit.TARGET_NOT_REACHED
    record = study.run_dir(task).record()
    assert (record.run_class, record.restarts) == ("resumed", 1)
    assert len(calls) == 3
    failed = read_record(tmp_path / "study/attempts/0/1")
    assert (failed.exit_code, "file server" in failed.error) == (Exit.FAILURE, True)


def test_missing_data_are_named_and_counted(planned, tmp_path):
    study = planned("seed=1", "recipe.data.generate=null", "recipe.data.path=absent.csv")
    (task,) = study.tasks()
    for _ in range(2):
        with pytest.raises(RunError, match=r"absent.csv is missing") as caught:
            study.run(task, QUIET)
        assert caught.value.exit_code == Exit.DATA
    state = study.state(task)
    assert (state.progress, len(state.failures)) == ("failed", 2)
    with pytest.raises(RunError, match=r"failed 2 times.*absent.csv is missing"):
        study.run(task, QUIET)
    command = [sys.executable, "-P", "-m", "timetrial", "batch", "status", str(tmp_path / "study"), "--attempts=2"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (shown.returncode, "1 failed" in shown.stdout) == (Exit.FAILURE, True), shown.stderr


def test_a_diverged_run_is_a_result_that_nobody_tries_again(planned):
    study = planned("seed=1", "recipe.training.learning_rate=1e30")
    (task,) = study.tasks()
    assert study.run(task, QUIET) == Exit.DIVERGED
    assert study.run(task, QUIET) == Exit.DIVERGED
    assert words(study) == ["completed_epochs"]
    assert not (study.path / "attempts").exists()


def test_an_element_that_another_process_runs_is_left_alone(planned, tmp_path, request):
    study = planned("seed=1", "recipe.max_epochs=100000")
    (task,) = study.tasks()
    command = [sys.executable, "-P", "-m", "timetrial", "batch"]
    other = subprocess.Popen(
        [*command, "run", "study", "0"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    request.addfinalizer(other.kill)
    while not (study.run_dir(task).path / "quality.csv").exists():
        assert other.poll() is None
        time.sleep(0.05)
    assert words(study) == ["running"]
    with pytest.raises(RunDirLocked):
        study.run(task, QUIET)
    again = subprocess.run([*command, "run", "study", "0"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert again.returncode == Exit.STOPPED
    assert "is in use by another process" in again.stdout
    shown = subprocess.run([*command, "status", "study"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "1 running" in shown.stdout
    judged = [sys.executable, "-P", "-m", "timetrial", "study", "study/runs"]
    shown = subprocess.run(judged, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (shown.returncode, "unfinished runs" in shown.stdout) == (0, True), shown.stdout
    other.terminate()
    assert other.wait(60) == Exit.STOPPED
    assert words(study) == ["waiting"]


def test_pending_elements_by_cards(tmp_path):
    command = [sys.executable, "-P", "-m", "timetrial", "batch"]
    plan = ["plan", "study", "accelerator=cpu,h200", "gpus=1,2", "seed=1,2"]
    subprocess.run([*command, *plan], cwd=tmp_path, check=True, capture_output=True)
    shown = subprocess.run(
        [*command, "status", "study", "--pending"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert shown.stdout == "0 0-3\n1 4-5\n2 6-7\n"
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_an_index_that_is_not_there(tmp_path, planned):
    planned("seed=1,2")
    command = [sys.executable, "-P", "-m", "timetrial", "batch", "run", "study", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == Exit.CONFIGURATION
    assert "tasks 0 to 1, not 2" in done.stderr
    assert not os.path.exists(tmp_path / "study" / "runs")
