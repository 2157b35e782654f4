"""The batch scripts without a batch system."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.run_dir import RunDir

pytestmark = pytest.mark.integration


@pytest.fixture
def tiny(tiny_ncf):
    """Return overrides of a run that reaches its target in seconds."""
    return [*tiny_ncf, "recipe.global_batch_size=2048", "recipe.target.v05.hit_rate=0.2", "launcher=inline"]


@pytest.fixture
def start(root, tmp_path):
    """Start a script in tmp_path, with this Python's timetrial and without Slurm: start(script, *arguments)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def start_script(script, *arguments):
        return subprocess.Popen(
            [root / "scripts" / script, *arguments],
            env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    return start_script


@pytest.fixture
def script(start):
    """Run a script to its end: script(name, *arguments) -> (exit code, stdout, stderr)."""

    def run(name, *arguments):
        process = start(name, *arguments)
        stdout, stderr = process.communicate(timeout=200)
        return process.returncode, stdout, stderr

    return run


def test_study_continues_after_a_failed_task(script, tiny, tmp_path):
    arguments = ["study", *tiny, "recipe.training.learning_rate=1e30,0.005", "seed=1"]
    code, stdout, _ = script("slurm/study.sbatch", *arguments)
    assert code == Exit.DIVERGED
    assert "lower the learning rate" in stdout
    assert "reached       yes" in stdout
    code, stdout, _ = script("slurm/study.sbatch", "study")
    assert code == Exit.DIVERGED
    assert stdout.count("nothing to do") == 2


def test_stopped_study_continues(start, script, tiny, tmp_path):
    arguments = ["study", *tiny, "seed=1,2"]
    arguments += ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=80"]
    process = start("slurm/study.sbatch", *arguments)
    while not (tmp_path / "study/runs/0-seed-1/quality.csv").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == Exit.STOPPED
    assert "a checkpoint is written" in stdout
    assert "To continue: the same command." in stdout
    assert not (tmp_path / "study/runs/1-seed-2").exists()
    code, stdout, _ = script("slurm/study.sbatch", "study")
    assert code == Exit.TARGET_NOT_REACHED
    assert "restarts      1" in stdout


def test_job_of_all_tasks_is_requeued_after_those_that_nobody_runs(root, tiny, tmp_path):
    plan = [sys.executable, "-P", "-m", "timetrial", "batch", "plan", "study", *tiny, "seed=1,2"]
    subprocess.run(plan, cwd=tmp_path, check=True, timeout=100, capture_output=True)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requests.txt\n')
    scontrol.chmod(0o755)
    paths = [str(scontrol.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": ":".join(paths), "SLURM_JOB_ID": "55"}
    in_use = RunDir(tmp_path / "study/runs/0-seed-1", seed=0)
    in_use.path.mkdir(parents=True)
    with in_use.locked():
        command = [root / "scripts/slurm/study.sbatch", "study"]
        job = subprocess.run(command, cwd=tmp_path, env=environment, timeout=200, capture_output=True, text=True)
    assert job.returncode == Exit.STOPPED, job.stdout + job.stderr
    assert (tmp_path / "requests.txt").read_text() == "requeue 55\n"
    assert RunDir(tmp_path / "study/runs/1-seed-2", seed=0).record().exit_code == Exit.TARGET_REACHED


def test_dry_run_prints_every_command_and_writes_nothing(script, tmp_path):
    arguments = ["study", "accelerator=h200,cpu", "gpus=1,4", "seed=range(1,4)"]
    code, _, stderr = script(
        "slurm/submit", "--dry-run", "--max-concurrent=2", "--time=1:00:00", "--account=a", *arguments
    )
    assert (code, list(tmp_path.iterdir())) == (0, [])
    lines = [line for line in stderr.splitlines() if line.startswith("sbatch")]
    assert len(lines) == 4
    arrays = [word for line in lines for word in shlex.split(line) if word.startswith("--array=")]
    assert arrays == ["--array=2-3,6-7,10-11%2", "--array=0,4,8%2", "--array=1,5,9%2"]
    assert "--gres" not in lines[0]
    assert "--gres=gpu:1" in lines[1]
    assert "--gres=gpu:4" in lines[2]
    assert all("--time=1:00:00" in line for line in lines[:3])
    assert "--dependency=afterany:" in lines[3]
    report = next(word for word in shlex.split(lines[3]) if word.startswith("--wrap=")).removeprefix("--wrap=")
    assert "timetrial report 'study'/runs --out 'study'/report" in report
    assert all("--account=a" in line for line in lines)


def test_gpus_are_divided_over_nodes(script):
    arguments = ["study", "accelerator=h200", "launcher=slurm", "gpus=4"]
    assert "--gres=gpu:2 --nodes=2" in script("slurm/submit", "--dry-run", "--nodes=2", *arguments)[2]


def test_missing_study_is_named(script):
    code, _, stderr = script("slurm/submit", "--dry-run", "nowhere")
    assert (code, stderr.split(" is missing")[0]) == (Exit.CONFIGURATION, "submit: nowhere/manifest.txt")


def test_invalid_study_is_not_submitted(script, tmp_path):
    code, _, stderr = script("slurm/submit", "--dry-run", "study", "nonsense=1")
    assert code == Exit.CONFIGURATION
    assert "There is no key nonsense" in stderr
    assert "sbatch" not in stderr


def test_wheelhouse_has_wheels_of_the_given_platform(script, tmp_path):
    """Wheels for another Python and another processor than this machine's."""
    code, _, stderr = script("wheelhouse", "--python=3.12", "--platform=aarch64", "wheels", "psutil", "six")
    if "No matching distribution" in stderr:
        pytest.skip("no package index can be reached")
    assert code == 0, stderr
    names = [path.name for path in (tmp_path / "wheels").iterdir()]
    assert len(names) == 3
    assert all(name.endswith(("none-any.whl", "aarch64.whl")) for name in names)


SCRIPTS = ["slurm/submit", "slurm/study.sbatch", "wheelhouse"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_prints_its_usage(script, name):
    code, stdout, stderr = script(name, "--help")
    assert (code, stderr) == (0, "")
    assert f"scripts/{name}" in stdout
    assert "set -" not in stdout
    assert script(name) == (Exit.CONFIGURATION, "", stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slurm/submit", "--dry-run", "--time", "1:00:00", "study", "seed=1"], "study is not an override: options of"),
        (["slurm/submit", "--dry-run", "study", "seed=1", "--time=1:00:00"], "--time=1:00:00 is not an override"),
        (["slurm/study.sbatch", "--time=1:00:00", "study"], "--time=1:00:00 is not an option"),
        (["slurm/study.sbatch", "study"], "study/manifest.txt is missing: add overrides"),
        (["wheelhouse", "--pyhton=3.12", "there"], "--pyhton=3.12 is not an option"),
    ],
)
def test_wrong_argument_is_named_and_nothing_is_written(script, tmp_path, arguments, message):
    code, stdout, stderr = script(*arguments)
    assert (code, stdout, message in stderr, list(tmp_path.iterdir())) == (Exit.CONFIGURATION, "", True, []), stderr


@pytest.mark.parametrize("study", ["it's a study", "Grüße", "two\nlines", "$(touch pwned) `touch pwned`"])
def test_report_job_reads_any_name_of_a_study(root, tmp_path, study):
    """Its script runs in sh, and Bash quotes what it cannot print in the C locale in a way that sh cannot read."""
    programs = tmp_path / "bin"
    programs.mkdir()
    record = f"printf '%s\\0' \"$@\" >> {tmp_path}"
    fake = {
        "sbatch": f'case "$*" in *--wrap*) {record}/sbatch ;; esac; echo 7',
        "timetrial": f"case $* in *--pending) echo 1 0 ;; *) {record}/timetrial ;; esac",
    }
    for name, script in fake.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    (tmp_path / study).mkdir()
    (tmp_path / study / "manifest.txt").write_text("0 seed=1\n")
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "LC_ALL": "C"}
    subprocess.run([root / "scripts/slurm/submit", study], env=environment, cwd=tmp_path, check=True, timeout=60)
    wrap = next(word for word in (tmp_path / "sbatch").read_text().split("\0") if word.startswith("--wrap="))
    subprocess.run(["sh", "-c", wrap.removeprefix("--wrap=")], env=environment, cwd=tmp_path, check=True, timeout=60)
    words = (tmp_path / "timetrial").read_text().split("\0")[:-1]
    assert words == ["batch", "status", study, "report", f"{study}/runs", "--out", f"{study}/report"]
    assert not (tmp_path / "pwned").exists()


def test_submit_takes_a_number_of_nodes(script, tmp_path):
    code, _, stderr = script("slurm/submit", "--dry-run", "--nodes=a[$(touch pwned)]", "study", "seed=1")
    assert (code, "is no number of nodes" in stderr) == (Exit.CONFIGURATION, True)
    assert not (tmp_path / "pwned").exists()
