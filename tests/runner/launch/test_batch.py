"""Studies: their plan, and that every task ends with one result however its attempts end."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from timetrial.runner.cli.batch import _ranges
from timetrial.runner.config import validation
from timetrial.runner.core.errors import ConfigurationError, Exit, OutOfMemory, RunDirLocked, RunError
from timetrial.runner.launch import batch
from timetrial.runner.launch.batch import Study
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunState

pytestmark = pytest.mark.integration

OVERRIDES = [
    "recipe.global_batch_size=2048",
    "recipe.max_epochs=2",
    "recipe.target.v05.hit_rate=0.999",
    "launcher=inline",
]
COMMAND = [sys.executable, "-P", "-m", "timetrial", "batch"]
QUIET = Console(quiet=True)


@pytest.fixture
def plan_study(tiny_ncf, tmp_path, monkeypatch):
    """Plan a study of tiny runs with at most two attempts: plan_study(*overrides) -> study."""
    monkeypatch.chdir(tmp_path)

    def plan(*overrides):
        study = Study(tmp_path / "study", max_attempts=2)
        study.plan([*tiny_ncf, *OVERRIDES, *overrides])
        return study

    return plan


def progress_of(study):
    return [study.state(task).progress for task in study.tasks()]


def test_plan_has_the_runs_of_a_sweep_in_hydras_order(plan_study):
    study = plan_study("precision=fp32,bf16", "seed=range(1,4)")
    tasks = study.tasks()
    assert [task.overrides[-2:] for task in tasks] == [
        (f"precision={precision}", f"seed={seed}") for precision in ("fp32", "bf16") for seed in (1, 2, 3)
    ]
    assert [task.name for task in tasks][::5] == ["0-precision-fp32-seed-1", "5-precision-bf16-seed-3"]
    assert progress_of(study) == ["waiting"] * 6


def test_plan_is_written_once(plan_study, tmp_path):
    plan_study("seed=1,2")
    manifest = tmp_path / "study" / "manifest.txt"
    before = manifest.read_text(), manifest.stat().st_mtime_ns
    plan_study("seed=1,2")
    assert (manifest.read_text(), manifest.stat().st_mtime_ns) == before
    for other in ("seed=1,3", "seed=1,2,3 precision=bf16", "seed=2"):
        with pytest.raises(ConfigurationError, match=r"a task that this plan leaves out .*a plan can only grow"):
            plan_study(*other.split())
    with pytest.raises(ConfigurationError, match="seed must be a whole number, not x"):
        plan_study("seed=1,2,x")
    assert manifest.read_text() == before[0]


def test_plan_grows_and_keeps_its_tasks(plan_study):
    """Names and places of the first tasks stay, though more digits and other words would name them anew."""
    first = plan_study("seed=1,2").tasks()
    study = plan_study("seed=1,2")
    run_dir = study.run_dir(first[1])
    run_dir.path.mkdir(parents=True)
    run_dir.update(lambda record: record.ended(Exit.TARGET_REACHED, ""))
    study = plan_study("seed=range(0,12)")
    tasks = study.tasks()
    assert tasks[:2] == first
    assert [task.value("seed", "") for task in tasks] == ["1", "2", "0", *map(str, range(3, 12))]
    assert [task.name for task in tasks[::11]] == ["0-seed-1", "11-seed-11"]
    assert [task.index for task in tasks] == list(range(12))
    assert progress_of(study) == ["waiting", "done", *["waiting"] * 10]
    assert study.plan([*first[0].overrides[:-1], "seed=range(0,12)"]) == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["round=v05,v07"], r"round=v07: NCF was not part of MLPerf round v07"),
        (["nonsense=1"], "There is no key nonsense"),
        (["run_dir=here"], "run_dir is chosen by the study"),
        (["seed=one,two"], "seed must be a whole number, not one"),
    ],
)
def test_rejects_invalid_runs_before_the_plan_is_written(plan_study, tmp_path, overrides, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_study(*overrides)
    assert not (tmp_path / "study").exists()


def test_planning_checks_each_run_group_once_and_every_odd_seed(plan_study, monkeypatch):
    """What decides the time for a thousand tasks; the seeds alone are checked by their form."""
    checked = []
    monkeypatch.setattr(batch, "validate", lambda node: checked.append(node.seed) or validation.validate(node))
    study = plan_study("precision=fp32,bf16", "seed=range(0,500)")
    assert len(study.tasks()) == 1000
    assert checked == [0, 0]
    with pytest.raises(ConfigurationError, match=r"seed must be from 0|not x"):
        Study(study.path / "other", 1).plan(["accelerator=cpu", "seed=1,2,-1"])
    with pytest.raises(ConfigurationError, match="seed must be a whole number, not x"):
        Study(study.path / "other", 1).plan(["accelerator=cpu", "seed=1,2,x"])


# As the attacks of a stranger's study; each would import code, read other files or the environment, or leave runs/.
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../../escape seed=1", r"line 1: \.\./\.\./escape is no name of a folder"),
        (".. seed=1", "is no name of a folder"),
        ("/escape seed=1", "is no name of a folder"),
        ("'a\x1b[31mb' seed=1", "is no name of a folder"),
        ("link seed=1", "link is no name of a folder"),
        (f"{'a' * 101} seed=1", "is no name of a folder"),
        ("", "line 1 is no task"),
        ("0-a 'unfinished", "line 1 is no task"),
        (
            "0 workload.workload=this.Thing",
            r"sets workload\.workload=this\.Thing: a study takes values, but no classes",
        ),
        ("0 +workload.loaders.torch=this.Thing", "but no classes"),
        ("0 'workload={workload: this.Thing}'", "but no classes"),
        ("0 ' workload.workload=this.Thing'", "cannot be read"),
        ("0 'hydra.searchpath=[pkg://this]'", "no settings of Hydra"),
        ("0 'hydra={searchpath: [pkg://this]}'", "no settings of Hydra"),
        ("0 hydra/launcher=joblib", "no settings of Hydra"),
        ("0 'system=${oc.env:SECRET_TOKEN}'", r"no \$\{\.\.\.\}"),
        (r"0 'system=$\{oc.env:SECRET_TOKEN\}'", r"no \$\{\.\.\.\}"),
        ("0 workload=../../evil", "workload=../../evil is not one of the choices|is not known"),
        ("0 workload={folder}/evil", "is not one of the choices|is not known"),
    ],
)
def test_manifest_of_a_stranger_is_data(tmp_path, line, message):
    study = tmp_path / "study"
    (study / "runs").mkdir(parents=True)
    (study / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (study / "manifest.txt").write_text(f"{line.format(folder=tmp_path) if 'evil' in line else line}\n")
    (tmp_path / "this.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nThing = int\n")
    (tmp_path / "evil.yaml").write_text("name: ncf\ntitle: evil\nbenchmark: ncf\nworkload: this.Thing\n")
    command = [sys.executable, "-m", "timetrial", "batch", "run", "study", "0"]  # the current folder is on its path
    environment = os.environ | {"SECRET_TOKEN": "hunter2"}
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert completed.returncode == Exit.CONFIGURATION, completed.stderr
    assert re.search(message, completed.stderr), completed.stderr
    assert "Traceback" not in completed.stderr
    assert "\x1b" not in completed.stderr
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "escape").exists()
    assert not any("hunter2" in file.read_text() for file in study.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "override", ["workload.workload=this.Thing", "hydra.searchpath=[pkg://this]", "system=${seed}"]
)
def test_plan_refuses_what_a_manifest_may_not_hold(tmp_path, override):
    with pytest.raises(ConfigurationError, match="a study takes values"):
        Study(tmp_path / "study", 1).plan(["accelerator=cpu", override])
    assert not (tmp_path / "study").exists()


def test_damaged_study_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "manifest.txt").write_bytes(b"0 system=\xff\n")
    with pytest.raises(RunError, match=r"manifest.txt cannot be read .*UTF-8"):
        Study(tmp_path, 1).tasks()
    (tmp_path / "manifest.txt").write_text("0 gpus=x accelerator=h200\n")
    completed = subprocess.run(
        [*COMMAND, "status", ".", "--pending"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (completed.returncode, "gpus=x" in completed.stderr) == (Exit.CONFIGURATION, True)
    (tmp_path / "attempts" / "0" / "odd").mkdir(parents=True)
    (tmp_path / "attempts" / "0" / "odd" / "status.json").write_text("{}")
    study = Study(tmp_path, 1)
    assert study.state(study.tasks()[0]).failures == ()


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
    assert completed.stdout == "0 0-3\n1 4-5\n2 6-7\n"
    completed = subprocess.run([*COMMAND, "status", "study", "--json"], cwd=tmp_path, capture_output=True, text=True)
    tasks = json.loads(completed.stdout)
    assert completed.returncode == Exit.FAILURE  # not all are done
    assert [(task["index"], task["state"], task["seconds"]) for task in tasks] == [
        (n, "waiting", None) for n in range(8)
    ]
    assert tasks[5]["overrides"] == ["accelerator=h200", "gpus=1", "seed=2"]
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_rejects_index_out_of_range(tmp_path, plan_study):
    plan_study("seed=1,2")
    command = [*COMMAND, "run", "study", "2"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert completed.returncode == Exit.CONFIGURATION
    assert "tasks 0 to 1, not 2" in completed.stderr
    assert not os.path.exists(tmp_path / "study" / "runs")
