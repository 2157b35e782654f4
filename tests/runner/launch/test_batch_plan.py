"""The plan of a study: its tasks, what it refuses, and manifests that others wrote."""

import os
import re
import subprocess
import sys

import pytest

from timetrial.runner.config import validation
from timetrial.runner.core.errors import ConfigurationError, Exit, RunError
from timetrial.runner.launch import batch
from timetrial.runner.launch.batch import Study

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-P", "-m", "timetrial", "batch"]


def progress_of(study):
    return [study.state(task).progress for task in study.tasks()]


def test_plan_has_the_runs_of_a_sweep_by_seed(plan_study):
    study = plan_study("precision=fp32,bf16", "seed=range(1,4)")
    tasks = study.tasks()
    assert [task.overrides[-2:] for task in tasks] == [
        (f"seed={seed}", f"precision={precision}") for seed in (1, 2, 3) for precision in ("fp32", "bf16")
    ]
    assert [task.name for task in tasks][::5] == ["0-seed-1-precision-fp32", "5-seed-3-precision-bf16"]
    assert progress_of(study) == ["waiting"] * 6


def test_plan_sees_what_another_process_has_planned_meanwhile(plan_study, tmp_path, monkeypatch):
    validate, others = batch._validate_all, [("seed=1", "precision=bf16")]

    def validate_slowly(tasks):
        validate(tasks)
        while others:
            plan_study(*others.pop())

    monkeypatch.setattr(batch, "_validate_all", validate_slowly)
    with pytest.raises(ConfigurationError, match=r"a task that this plan leaves out .*precision=bf16"):
        plan_study("seed=1,2")
    others.append(("seed=1,2", "precision=bf16"))
    study = plan_study("seed=range(1,4)", "precision=bf16")
    assert [task.name[0] for task in study.tasks()] == ["0", "1", "2"]


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"Cannot write .*file \(File exists\): choose another place"):
        Study(tmp_path / "file", max_attempts=1).plan(["accelerator=cpu"])


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
        ("0 data_dir={folder}/evil", "a study names no folders. Set TIMETRIAL_DATA_DIR"),
        ("0 staging_dir={folder}/evil", "a study names no folders"),
        ("0 runs_dir={folder}/evil", "a study names no folders"),
        ("0 recipe.data.cache_dir={folder}/evil", "a study names no folders"),
        ("0 'recipe.data={{cache_dir: {folder}/evil}}'", "a study names no folders"),
        ("0 +data_dir@staging_dir={folder}/evil", "a study names no folders"),
        ("0 recipe.data.path={folder}/evil", "which is not below .*: move the files there"),
        ("0 recipe.data.path=../evil", "which is not below"),
        ("0 'recipe.data={{path: {folder}/evil}}'", "which is not below"),
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


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\x85"])
def test_plan_refuses_an_override_with_a_line_break(tmp_path, end):
    """Its manifest could not be read back."""
    with pytest.raises(ConfigurationError, match="an override has no line breaks"):
        Study(tmp_path / "study", 1).plan(["accelerator=cpu", f"system='a{end}b'"])
    assert not (tmp_path / "study").exists()


def test_task_may_name_data_below_the_data_folder(plan_study, tmp_path, monkeypatch):
    monkeypatch.setenv("TIMETRIAL_DATA_DIR", str(tmp_path / "mine"))
    path = f"recipe.data.path={tmp_path}/mine/own/ratings.csv"
    assert plan_study(path).tasks()[0].overrides[-1] == path


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
