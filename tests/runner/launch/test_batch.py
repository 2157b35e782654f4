"""Tasks of a study: each ends with one result however its attempts end."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from timetrial.runner.cli.batch import _ranges
from timetrial.runner.core.errors import Exit, OutOfMemory, RunDirLocked, RunError
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunState

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-P", "-m", "timetrial", "batch"]
QUIET = Console(quiet=True)


def progress_of(study):
    return [study.state(task).progress for task in study.tasks()]


def test_task_with_a_result_is_not_run_again(plan_study):
    study = plan_study("seed=1,2")
    first, _ = study.tasks()
    assert study.run(first, QUIET) == Exit.TARGET_NOT_REACHED
    log = next(study.run_dir(first).path.glob("result_1.txt")).read_bytes()
    assert study.run(first, QUIET) == Exit.TARGET_NOT_REACHED
    assert next(study.run_dir(first).path.glob("result_1.txt")).read_bytes() == log
    assert progress_of(study) == ["done", "waiting"]


def test_result_of_a_killed_launcher_is_finalized_and_not_run_again(plan_study):
    study = plan_study("seed=1")
    (task,) = study.tasks()
    study.run(task, QUIET)
    run_dir = study.run_dir(task)
    before = run_dir.record()
    assert before.attempts[0].overrides == task.overrides
    run_dir.update(lambda record: replace(record, state=RunState.RUNNING, verdict=None))
    assert progress_of(study) == ["waiting"]
    assert study.run(task, QUIET) == Exit.TARGET_NOT_REACHED
    assert run_dir.record().verdict == before.verdict
    assert run_dir.record().restarts == 0
    assert progress_of(study) == ["done"]


def test_out_of_memory_halves_the_micro_batch_in_the_next_attempt(plan_study, tmp_path, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    compute_loss = NCF.compute_loss

    def compute_loss_with_little_memory(self, model, batch):
        if batch.weight > 600:
            torch.empty(2**60)  # more than any machine can allocate
        return compute_loss(self, model, batch)

    monkeypatch.setattr(NCF, "compute_loss", compute_loss_with_little_memory)
    study = plan_study("seed=1")
    study._max_attempts = 4
    (task,) = study.tasks()
    assert study.run(task, QUIET) == Exit.TARGET_NOT_REACHED
    assert "batch_size: 512" in study.run_dir(task).config.read_text()
    failed = [read_record(tmp_path / "study/attempts/0" / number) for number in ("1", "2")]
    assert [record.exit_code for record in failed] == [Exit.OUT_OF_MEMORY] * 2
    assert len(list((tmp_path / "study" / "runs").rglob("result_*.txt"))) == 1
    assert len(list((tmp_path / "study" / "attempts").rglob("result_*.txt"))) == 2
    assert progress_of(study) == ["done"]


def test_task_that_never_fits_in_memory_fails_after_its_attempts(plan_study, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    monkeypatch.setattr(NCF, "compute_loss", lambda *_: torch.empty(2**60))
    study = plan_study("seed=1")
    (task,) = study.tasks()
    with pytest.raises(RunError, match=r"0 has failed 2 times.*raise --attempts.*tuning.micro_batch_size"):
        study.run(task, QUIET)
    assert progress_of(study) == ["failed"]
    assert len(list(study.runs.rglob("result_*.txt"))) == 1  # the last failed attempt remains
    study._max_attempts = 3
    assert progress_of(study) == ["waiting"]


def test_micro_batch_of_one_is_not_halved(plan_study, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    monkeypatch.setattr(NCF, "compute_loss", lambda *_: torch.empty(2**60))
    study = plan_study("seed=1", "tuning.micro_batch_size=1", "recipe.data.generate.num_users=20")
    (task,) = study.tasks()
    with pytest.raises(RunError, match="failed 2 times") as caught:
        study.run(task, QUIET)
    assert not isinstance(caught.value, OutOfMemory)


def test_failed_attempt_is_resumed_from_its_checkpoint(plan_study, tmp_path, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    score, calls = NCF.score, []

    def score_with_one_error(self, parts):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the file server is unreachable")
        return score(self, parts)

    monkeypatch.setattr(NCF, "score", score_with_one_error)
    study = plan_study("seed=1", "checkpoint.every_seconds=0", "engine.warm_up=false")
    (task,) = study.tasks()
    assert study.run(task, QUIET) == Exit.TARGET_NOT_REACHED
    record = study.run_dir(task).record()
    assert (record.run_class, record.restarts) == ("resumed", 1)
    assert len(calls) == 3
    failed = read_record(tmp_path / "study/attempts/0/1")
    assert (failed.exit_code, "file server" in failed.error) == (Exit.FAILURE, True)


def test_missing_data_count_as_a_failed_attempt(plan_study, tmp_path):
    study = plan_study("seed=1", "recipe.data.generate=null", "recipe.data.path=absent.csv")
    (task,) = study.tasks()
    for _ in range(2):
        with pytest.raises(RunError, match=r"absent.csv is missing") as caught:
            study.run(task, QUIET)
        assert caught.value.exit_code == Exit.DATA
    state = study.state(task)
    assert (state.progress, len(state.failures)) == ("failed", 2)
    with pytest.raises(RunError, match=r"failed 2 times.*absent.csv is missing"):
        study.run(task, QUIET)
    command = [*COMMAND, "status", str(tmp_path / "study"), "--attempts=2"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (completed.returncode, "1 failed" in completed.stdout) == (Exit.FAILURE, True), completed.stderr


def test_diverged_run_is_a_result(plan_study):
    study = plan_study("seed=1", "recipe.training.learning_rate=1e30")
    (task,) = study.tasks()
    assert study.run(task, QUIET) == Exit.DIVERGED
    assert study.run(task, QUIET) == Exit.DIVERGED
    assert progress_of(study) == ["done"]
    assert not (study.path / "attempts").exists()


def test_task_of_another_process_is_not_run(plan_study, tmp_path, request):
    study = plan_study("seed=1", "recipe.max_epochs=100000")
    (task,) = study.tasks()
    process = subprocess.Popen(
        [*COMMAND, "run", "study", "0"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    request.addfinalizer(process.kill)
    while not (study.run_dir(task).path / "quality.csv").exists():
        assert process.poll() is None
        time.sleep(0.05)
    assert progress_of(study) == ["running"]
    with pytest.raises(RunDirLocked):
        study.run(task, QUIET)
    second = subprocess.run([*COMMAND, "run", "study", "0"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert second.returncode == Exit.STOPPED
    assert "is in use by another process" in second.stdout
    completed = subprocess.run([*COMMAND, "status", "study"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "1 running" in completed.stdout
    study_command = [sys.executable, "-P", "-m", "timetrial", "study", "study/runs"]
    completed = subprocess.run(study_command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (completed.returncode, "unfinished runs" in completed.stdout) == (0, True), completed.stdout
    process.terminate()
    assert process.wait(60) == Exit.STOPPED
    assert progress_of(study) == ["waiting"]


def test_pending_tasks_are_listed_by_number_of_gpus(tmp_path):
    plan = ["plan", "study", "accelerator=cpu,h200", "gpus=1,2", "seed=1,2"]
    subprocess.run([*COMMAND, *plan], cwd=tmp_path, check=True, capture_output=True)
    completed = subprocess.run(
        [*COMMAND, "status", "study", "--pending"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert completed.stdout == "0 0-1,4-5\n1 2,6\n2 3,7\n"
    completed = subprocess.run([*COMMAND, "status", "study", "--json"], cwd=tmp_path, capture_output=True, text=True)
    tasks = json.loads(completed.stdout)
    assert completed.returncode == Exit.FAILURE  # not all are done
    assert [(task["index"], task["state"], task["seconds"]) for task in tasks] == [
        (n, "waiting", None) for n in range(8)
    ]
    assert tasks[5]["overrides"] == ["seed=2", "accelerator=cpu", "gpus=2"]
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_rejects_index_out_of_range(tmp_path, plan_study):
    plan_study("seed=1,2")
    command = [*COMMAND, "run", "study", "2"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert completed.returncode == Exit.CONFIGURATION
    assert "tasks 0 to 1, not 2" in completed.stderr
    assert not os.path.exists(tmp_path / "study" / "runs")
