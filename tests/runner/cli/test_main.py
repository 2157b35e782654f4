"""The command line: help, errors, sweeps, checks and the progress bar."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.record_file import read_record

pytestmark = pytest.mark.integration


@pytest.fixture
def tiny(tiny_ncf):
    """Return overrides of a run that reaches its target in seconds."""
    return [*tiny_ncf, "recipe.global_batch_size=512", "recipe.target.v05.hit_rate=0.2"]


def timetrial(folder, *arguments):
    command = [sys.executable, "-P", "-m", "timetrial", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_help_lists_groups_and_examples(tmp_path):
    assert "run" in timetrial(tmp_path, "--help").stdout
    text = timetrial(tmp_path, "run", "--help").stdout
    assert "workload: cifar10, cnn, gnmt, " in text
    assert "recipe: cifar10/embedded, " in text
    assert "Examples" in text
    assert max(map(len, text.splitlines())) <= 80


def test_cfg_job_prints_the_configuration_and_runs_nothing(tmp_path):
    completed = timetrial(tmp_path, "run", "accelerator=cpu", "seed=7", "--cfg", "job")
    assert completed.returncode == 0
    assert "seed: 7" in completed.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "accelerator=cpu", "nonsense=1"], Exit.CONFIGURATION, "nonsense"),
        (["run", "accelerator=cpu", "seed=one"], Exit.CONFIGURATION, "seed must be a whole number, not one"),
        (["run", "accelerator=cpu", "round=v07"], Exit.CONFIGURATION, "not part of MLPerf round v07"),
        (["run", "accelerator=cpu", "--wrong"], Exit.CONFIGURATION, "--wrong"),
        (["run", "-m", "hydra/launcher=submitit_slurm", "seed=1,2"], Exit.CONFIGURATION, "name their GPU"),
        (["rum"], Exit.CONFIGURATION, "rum"),
        (["run", "accelerator=h200", "gpus=99"], Exit.DEVICE, "use (accelerator=cpu|gpus=)"),
        (["run", "accelerator=cpu", "scale=reference"], Exit.DATA, "ml-20m/ratings.csv is missing"),
        (["check", "absent.txt"], Exit.DATA, "absent.txt is not a log"),
    ],
)
def test_wrong_argument_is_reported_in_one_sentence_with_its_exit_code(tmp_path, arguments, code, message):
    completed = timetrial(tmp_path, *arguments)
    assert completed.returncode == code, completed.stderr
    assert re.search(message, completed.stderr), completed.stderr
    assert "Traceback" not in completed.stderr + completed.stdout
    if arguments[0] == "run" and "--wrong" not in arguments:
        assert len(completed.stderr.strip().splitlines()) == 2  # what it does, and the error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["run", "--help"], ["batch", "--help"]])
def test_output_to_a_full_disk_is_a_sentence_and_an_exit_code(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-m", "timetrial", *arguments]
        completed = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert completed.returncode == Exit.DISK_FULL
    *status, error = completed.stderr.splitlines()
    assert status in ([], ["timetrial: reading the recipes"])
    assert "Cannot write to standard output (No space left on device)" in error


def test_run_whose_output_is_full_still_has_its_result(tiny, tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-m", "timetrial", "run", "launcher=inline", *tiny, "run_dir=run"]
        completed = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert completed.returncode == Exit.DISK_FULL
    assert "Traceback" not in completed.stderr
    assert (read_record(tmp_path / "run").state, read_record(tmp_path / "run").exit_code) == ("target reached", 0)


@pytest.mark.parametrize("launcher", ["inline", "local", "joblib"])
@pytest.mark.parametrize(("moment", "receiver"), [("start", "group"), ("training", "group"), ("training", "parent")])
def test_stopped_sweep_leaves_no_running_record(tiny, tmp_path, launcher, moment, receiver):
    """Ctrl-C reaches all processes, a batch system's signal perhaps only the first one."""
    overrides = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000", "seed=1,2,3"]
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
        overrides += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "launcher=inline"]
    else:
        overrides.append(f"launcher={launcher}")
    command = [sys.executable, "-P", "-m", "timetrial", "run", "-m", *tiny, *overrides]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    try:
        file = "config.yaml" if moment == "start" else "quality.csv"
        num_parallel = 2 if launcher == "joblib" and moment == "training" else 1
        while len(list(tmp_path.rglob(file))) < num_parallel:
            assert process.poll() is None
            time.sleep(0.02)
        (os.killpg if receiver == "group" else os.kill)(process.pid, signal.SIGINT)
        assert process.wait(100) == Exit.STOPPED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    records = [read_record(path.parent) for path in tmp_path.rglob("status.json")]
    assert {(record.state, record.exit_code) for record in records} <= {("stopped", Exit.STOPPED)}
    assert len(records) >= num_parallel or moment == "start"


def test_repeating_a_stopped_sweep_goes_on_with_it(tiny, tmp_path):
    overrides = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2,100000", "launcher=inline", "seed=1"]
    command = [sys.executable, "-P", "-m", "timetrial", "run", "-m", *tiny, *overrides]
    for attempt in (1, 2):
        with open(tmp_path / "output", "w") as file:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=file)
        try:
            while len(running := [read_record(path.parent) for path in tmp_path.rglob("status.json")]) < 2 or not any(
                record and len(record.attempts) == attempt and record.state == "running" for record in running
            ):
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(100) == Exit.STOPPED
        finally:
            process.kill()
            process.wait()
        output = (tmp_path / "output").read_text()
        assert "Repeat the command to go on with this sweep." in output
        assert ("ended before: " in output) == (attempt == 2)
    records = [read_record(path.parent) for path in sorted(tmp_path.rglob("status.json"))]
    assert sorted((record.state, len(record.attempts)) for record in records) == [
        ("stopped", 2),
        ("target not reached", 1),
    ]


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]])
def test_sweep_continues_after_a_failed_run(tiny, tmp_path, launcher):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    overrides = ["launcher=inline", *tiny, "seed=1,2", "round=v05,v07", "recipe.max_epochs=12"]
    completed = timetrial(tmp_path, "run", "-m", *overrides, *launcher)
    assert completed.returncode == Exit.CONFIGURATION, completed.stdout + completed.stderr
    assert "sweep of 4 runs" in completed.stdout
    assert "Traceback" not in completed.stderr
    (summary,) = (tmp_path / "runs").rglob("sweep.json")
    assert [run["exit_code"] for run in json.loads(summary.read_text())["runs"]] == [0, 20, 0, 20]
    assert len(list((tmp_path / "runs").rglob("result_*.txt"))) == 2


def test_check_reads_logs_and_run_directories(tiny, tmp_path):
    completed = timetrial(tmp_path, "run", "launcher=inline", *tiny, "run_dir=run", "recipe.max_epochs=12")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    good = timetrial(tmp_path, "check", "run")
    assert (good.returncode, "complies (0.7.0 keys, own target)" in good.stdout) == (0, True)
    log = tmp_path / "run" / "result_1.txt"
    log.write_text("\n".join(line for line in log.read_text().splitlines() if "run_stop" not in line))
    bad = timetrial(tmp_path, "check", str(log))
    assert bad.returncode == Exit.NOT_COMPLIANT
    printed = timetrial(tmp_path, "check", str(log), "--json")
    (entry,) = json.loads(printed.stdout)
    assert (printed.returncode, entry["log"], entry["compliant"]) == (Exit.NOT_COMPLIANT, str(log), False)
    assert entry["problems"][0] in bad.stdout
    assert "The line run_stop is missing: it stops the clock" in bad.stdout


def test_check_accepts_runs_without_their_target_and_stopped_runs(tiny, tmp_path):
    unreachable = ["recipe.target.v05.hit_rate=0.99", "recipe.max_epochs=2"]
    run = timetrial(tmp_path, "run", "launcher=inline", *tiny, "run_dir=run", *unreachable)
    assert run.returncode == Exit.TARGET_NOT_REACHED, run.stdout + run.stderr
    assert "complies, not converged (0.7.0 keys, own target)" in run.stdout
    missed = timetrial(tmp_path, "check", "run")
    assert (missed.returncode, "complies, not converged" in missed.stdout) == (0, True)
    log = tmp_path / "run" / "result_1.txt"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: 1 + max(number for number, line in enumerate(lines) if "epoch_start" in line)]))
    stopped = timetrial(tmp_path, "check", "run")
    assert (stopped.returncode, stopped.stdout.strip().endswith("stopped, not judged")) == (0, True)


def test_terminal_shows_a_progress_bar(tiny, tmp_path):
    controller, terminal = pty.openpty()
    arguments = ["run", *tiny, "recipe.target.v05.hit_rate=0.99", "recipe.max_epochs=60"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "timetrial", *arguments],
        cwd=tmp_path,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(terminal)
    output = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    os.close(controller)
    assert process.wait(60) == Exit.TARGET_NOT_REACHED
    text = output.decode()
    assert re.search(r"(epoch|evaluating) \d+/60", text)
    assert "hit_rate" in text
    assert "censored" in text
