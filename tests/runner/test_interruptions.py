"""Runs that are killed at any moment: their files are complete, and a resumed run equals an uninterrupted one.

The environment variable TIMETRIAL_KILLS sets the number of random kills (default 5).
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf

from timetrial.runner.core.errors import ConfigurationError, Exit, RunDirLocked
from timetrial.runner.record.run_dir import RunDir

pytestmark = pytest.mark.integration

KILLS = int(os.environ.get("TIMETRIAL_KILLS", "5"))
HANG_SECONDS = 600  # a run takes seconds; on a busy machine, minutes
OVERRIDES = ["recipe.global_batch_size=512", "recipe.target.v05.hit_rate=0.999", "resume=true"]


@pytest.fixture
def start(tiny_ncf, tmp_path):
    """Start a run in tmp_path/name: start(name, *overrides) -> process."""

    def start_run(name, *overrides):
        folders = [f"data_dir={tmp_path}/data", f"run_dir={tmp_path}/{name}"]
        command = [sys.executable, "-P", "-m", "timetrial", "run", *tiny_ncf, *OVERRIDES, *folders, *overrides]
        environment = os.environ | {"PYTHONFAULTHANDLER": "1"}  # SIGABRT prints the stacks
        with open(tmp_path / f"{name}.txt", "w") as output:
            return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT)

    yield start_run
    # Shown if the test fails.
    for path in [*tmp_path.glob("*.txt"), *tmp_path.glob("*/std*.txt")]:
        print(f"{path}:\n{path.read_text()}")


def wait_until_finished(process):
    try:
        assert process.wait(timeout=HANG_SECONDS) == Exit.TARGET_NOT_REACHED
    except subprocess.TimeoutExpired:
        for member in [*psutil.Process(process.pid).children(recursive=True), process]:
            member.send_signal(signal.SIGABRT)
        process.wait()
        raise


def kill(process, *, ranks=True):
    """Kill the launcher and its ranks, as a power failure would, or the launcher alone."""
    processes = [psutil.Process(process.pid)]
    processes += processes[0].children(recursive=True) if ranks else []
    for member in processes:
        with suppress(psutil.NoSuchProcess):  # it has ended already
            member.kill()
    process.wait()
    psutil.wait_procs(processes)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)


def quality_rows(run_dir):
    rows = csv.DictReader((run_dir / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["samples"], row["loss"], row["hit_rate"]) for row in rows]


def record(run_dir):
    return RunDir(run_dir, 1).record()


def pids(run_dir):
    return {attempt.pid for attempt in record(run_dir).attempts}


def test_killed_runs_equal_an_uninterrupted_one(tiny_ncf):
    """Runs are killed at random epochs, phases and writes, and resumed until each has finished."""
    script = Path(__file__).parents[2] / "scripts" / "dev" / "kill_runs.py"
    command = [sys.executable, "-P", script, *tiny_ncf, "recipe.global_batch_size=512", "recipe.max_epochs=40"]
    completed = subprocess.run(
        [*command, "recipe.target.v05.hit_rate=0.999", f"--kills={KILLS}"], capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    result = json.loads(completed.stdout)
    assert (sum(result["kills"].values()) >= KILLS, result["mismatches"]) == (True, [])


def test_run_killed_before_its_first_checkpoint_restarts_the_clock(start, tmp_path):
    overrides = ["recipe.max_epochs=40", "launcher=inline"]
    process = start("run", *overrides)
    wait_for(tmp_path / "run" / "quality.csv", process)
    kill(process)
    wait_until_finished(start("run", *overrides))
    final = record(tmp_path / "run")
    assert (final.run_class, final.restarts, final.training.lost_seconds) == ("clean", 1, 0.0)
    assert final.training.seconds == final.training.active_seconds


def test_restarted_run_counts_its_own_energy_and_evaluations(start, tmp_path):
    """The samples of a killed attempt were once added to those of the next, and its evaluations kept."""
    overrides = ["recipe.max_epochs=40", "launcher=inline", "observers.json_lines=true", "telemetry.every_seconds=0.1"]
    process = start("run", *overrides)
    wait_for(tmp_path / "run" / "quality.csv", process)
    kill(process)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    restarted_at = time.time()
    wait_until_finished(start("run", *overrides))
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    samples = list(csv.DictReader((tmp_path / "run" / "telemetry.csv").read_text().splitlines()))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert min(float(row["time"]) for row in samples) > restarted_at
    assert min(event["time"] for event in events) > restarted_at
    assert len(quality_rows(tmp_path / "run")) == len(record(tmp_path / "run").training.blocks)


KILLED_PAST_THE_TARGET = """
import os
from timetrial.workloads.ncf.workload import NCF
from timetrial.runner.callbacks.record_writer import RecordWriter
from timetrial.runner.training.events import BlockStarted
follow = RecordWriter.__call__
def die_past_the_target(self, event):
    follow(self, event)
    if isinstance(event, BlockStarted) and self._target_reached:
        os.kill(os.getpid(), 9)
RecordWriter.__call__ = die_past_the_target
from timetrial.runner.cli.main import main
main()
"""


@pytest.mark.parametrize("at_end", ["true", "false"])
def test_kill_past_the_target_does_not_undo_the_result(start, tiny_ncf, tmp_path, at_end):
    """The resumed run once trained on from an earlier checkpoint, a minute later, to a longer time."""
    target = ["recipe.target.v05.hit_rate=0.01", "launcher=inline", "checkpoint.every_seconds=0"]
    target += ["epochs_past_target=3", f"checkpoint.at_end={at_end}"]
    folders = [f"data_dir={tmp_path}/data", f"run_dir={tmp_path}/run"]
    command = [sys.executable, "-P", "-c", KILLED_PAST_THE_TARGET, "run", *tiny_ncf, *OVERRIDES, *folders, *target]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=HANG_SECONDS)
    assert process.returncode == -signal.SIGKILL, process.stderr
    killed = record(tmp_path / "run")
    assert killed.training.reached
    assert start("run", *target).wait(timeout=HANG_SECONDS) == Exit.TARGET_REACHED
    final = record(tmp_path / "run")
    assert (final.training, final.state) == (killed.training, "target reached")
    assert final.verdict.compliant, final.verdict


KILLED_BEFORE_LAST_CHECKPOINT = """
import os, sys
from timetrial.runner.training.checkpoint import Checkpointer
save = Checkpointer.save
def save_or_die(self, *exit_code):
    save(self, *exit_code)
    if exit_code:
        os.kill(os.getpid(), 9)
Checkpointer.save = save_or_die
from timetrial.runner.cli.main import main
main()
"""


def test_run_killed_at_its_last_checkpoint_is_over(start, tiny_ncf, tmp_path):
    """A kill between the checkpoint at the end and the result once added an epoch and a second run_stop."""
    target = ["recipe.target.v05.hit_rate=0.01", "launcher=inline", "checkpoint.at_end=true"]
    folders = [f"data_dir={tmp_path}/data", f"run_dir={tmp_path}/run"]
    command = [sys.executable, "-P", "-c", KILLED_BEFORE_LAST_CHECKPOINT, "run", *tiny_ncf, *OVERRIDES]
    process = subprocess.run([*command, *folders, *target], cwd=tmp_path, capture_output=True, timeout=HANG_SECONDS)
    assert process.returncode == -signal.SIGKILL, process.stderr
    killed = record(tmp_path / "run")
    assert start("run", *target).wait(timeout=HANG_SECONDS) == Exit.TARGET_REACHED
    final = record(tmp_path / "run")
    assert final.training == killed.training
    assert (final.state, final.verdict.compliant) == ("target reached", True)
    log = (tmp_path / "run" / "result_1.txt").read_text()
    assert log.count("run_stop") == log.count("run_start") == 1


RANK_DIES_AFTER_THE_END = """
import os, sys
from timetrial.runner.launch import worker
run_rank = worker.run_rank
def die_after_the_end(*arguments):
    run_rank(*arguments)
    os.kill(os.getpid(), 9)
worker.run_rank = die_after_the_end
main = worker.main
"""


def test_rank_that_dies_after_the_end_does_not_undo_the_result(tiny_ncf, tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(RANK_DIES_AFTER_THE_END)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    launcher = "from timetrial.runner.launch import rank_pool; rank_pool._WORKER = 'dying'; "
    launcher += "from timetrial.runner.cli.main import main; main()"
    folders = [f"data_dir={tmp_path}/data", f"run_dir={tmp_path}/run"]
    target = ["recipe.target.v05.hit_rate=0.01", "launcher=local", "checkpoint.every_seconds=0"]
    command = [sys.executable, "-P", "-c", launcher, "run", *tiny_ncf, *OVERRIDES, *folders, *target]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert process.returncode == Exit.TARGET_REACHED, process.stdout + process.stderr
    assert (record(tmp_path / "run").state, record(tmp_path / "run").error) == ("target reached", "")


def test_restarts_without_a_new_checkpoint_are_counted(start, tmp_path):
    overrides = ["recipe.max_epochs=100000", "launcher=inline", "checkpoint.every_seconds=1000"]
    process = start("run", *overrides)
    wait_for(tmp_path / "run" / "quality.csv", process)
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == Exit.STOPPED
    for _ in range(2):
        before = (tmp_path / "run" / "status.json").stat().st_mtime_ns
        process = start("run", *overrides)
        status_file = tmp_path / "run" / "status.json"
        while status_file.stat().st_mtime_ns == before or record(tmp_path / "run").run_class != "resumed":
            time.sleep(0.05)
        kill(process)
    assert record(tmp_path / "run").restarts == 2


def test_ranks_of_a_killed_launcher_lock_the_run_directory_until_they_end(start, tmp_path):
    overrides = ["recipe.max_epochs=15", "gpus=2", "launcher=local"]
    process = start("run", *overrides)
    wait_for(tmp_path / "run" / "quality.csv", process)
    ranks = psutil.Process(process.pid).children()
    for rank in ranks:
        rank.suspend()
    kill(process, ranks=False)
    run_dir = RunDir(tmp_path / "run", 1)
    assert run_dir.in_use()
    with pytest.raises(RunDirLocked), run_dir.locked():
        pass
    for rank in ranks:
        rank.resume()
    psutil.wait_procs(ranks, timeout=HANG_SECONDS)
    assert not run_dir.in_use()
    assert record(tmp_path / "run").exit_code == Exit.STOPPED  # they have written a checkpoint
    for process in [start("run", *overrides), start("uninterrupted", *overrides)]:
        wait_until_finished(process)
    assert quality_rows(tmp_path / "run") == quality_rows(tmp_path / "uninterrupted")


def test_resume_takes_over_an_empty_run_directory(launch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").touch()
    with pytest.raises(ConfigurationError, match="already holds a run"):
        launch(f"run_dir={tmp_path}/run")
    assert launch(f"run_dir={tmp_path}/run", "resume=true")[0] == Exit.TARGET_REACHED


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_resume_may_raise_the_time_limit(start, tmp_path, launcher):
    overrides = ["recipe.max_epochs=30", f"launcher={launcher}"]
    process = start("run", *overrides, "time_limit_seconds=0.5")
    assert process.wait(timeout=HANG_SECONDS) == Exit.TIME_LIMIT
    wait_until_finished(start("run", *overrides, f"time_limit_seconds={HANG_SECONDS}", "system=elsewhere"))
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert (config.time_limit_seconds, config.system != "elsewhere") == (HANG_SECONDS, True)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_repeated_stop_signals_count_as_one(start, tmp_path, launcher):
    """Batch systems signal the launcher, each rank, and then all of them again."""
    process = start("run", "recipe.max_epochs=100000", f"launcher={launcher}")
    wait_for(tmp_path / "run" / "quality.csv", process)
    processes = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    while process.poll() is None:
        for member in processes:
            if member.is_running():
                member.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert process.returncode == Exit.STOPPED
    final = record(tmp_path / "run")
    assert (final.state, final.exit_code, final.training.reached) == ("stopped", 12, False)
    assert final.verdict.summary == "stopped, not judged"


@pytest.mark.parametrize(("event", "first_eval_epoch"), [("EvalEnded", 1), ("BlockStarted", 100000)])
def test_second_ctrl_c_does_not_deny_that_training_began(start, tmp_path, event, first_eval_epoch):
    options = ["launcher=local", "checkpoint.every_seconds=0.1", "observers.json_lines=true"]
    process = start("run", "recipe.max_epochs=100000", f"recipe.first_eval_epoch={first_eval_epoch}", *options)
    wait_for(events := tmp_path / "run" / "events.jsonl", process)
    while event not in events.read_text():
        time.sleep(0.02)
    for _ in range(2):  # the second may arrive before the checkpoint of the first, or after
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert process.wait(timeout=60) == Exit.STOPPED
    assert (final := record(tmp_path / "run")).state == "stopped"
    assert "before training began" not in final.error
