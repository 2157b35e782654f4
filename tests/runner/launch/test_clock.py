"""Runs whose clock is set, and processes that are suspended: the time is that of the work, or the run says that it
is not and takes part in no verdict."""

import json
import os
import signal
import time
from dataclasses import replace

import psutil
import pytest
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.core.errors import DataError, Exit
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.results.parse import sources
from timetrial.runner.training import clock

pytestmark = pytest.mark.integration
UNREACHABLE = "recipe.target.v05.hit_rate=0.999"


@pytest.fixture
def shift_wall_clock(monkeypatch):
    """Set the wall clock by seconds: shift_wall_clock(3600)."""
    true_time = time.time
    yield lambda seconds: monkeypatch.setattr(time, "time", lambda: true_time() + seconds)
    monkeypatch.undo()
    clock.start_clock()


def check_excluded(run_dir):
    """The run is flagged and named, and no command takes its time."""
    flag = run_dir.record().flags["clock"]
    unusable = []
    assert sources.read_runs([run_dir.path], needed=False, pass_over=unusable.append) == []
    assert f"cannot be compared ({flag}): run it again." in str(unusable[0])
    for command in ("study", "report"):
        outcome = CliRunner().invoke(app, [command, str(run_dir.path)])
        assert isinstance(outcome.exception, DataError), outcome.output
    return flag


def check_times(run_dir, seconds):
    """The times of record and log agree, rise, and are at most `seconds`."""
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in run_dir.log.read_text().splitlines()]
    times = [line["time_ms"] for line in lines]
    assert times == sorted(times)
    start, stop = (line["time_ms"] for line in lines if line["key"] in ("run_start", "run_stop"))
    training = run_dir.record().training
    assert (stop - start) / 1e3 == pytest.approx(training.seconds, abs=0.002)
    assert training.train_seconds + training.eval_seconds <= training.active_seconds <= training.seconds <= seconds
    assert training.lost_seconds >= 0


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_clock_that_is_set_during_a_run(launch, shift_wall_clock, monkeypatch, seconds):
    from timetrial.workloads.ncf.workload import NCF

    score = NCF.score

    def score_and_set_the_clock(self, parts):
        shift_wall_clock(seconds)
        return score(self, parts)

    monkeypatch.setattr(NCF, "score", score_and_set_the_clock)
    began = time.monotonic()
    exit_code, run_dir = launch(UNREACHABLE)
    assert exit_code == Exit.TARGET_NOT_REACHED
    check_times(run_dir, time.monotonic() - began)
    assert f"the wall clock moved by {seconds:+,}.0 s" in check_excluded(run_dir)


@pytest.mark.parametrize("seconds", [-3600, -20, 3600])
@pytest.mark.parametrize("same_boot", [True, False])
def test_clock_that_is_set_before_a_resume(launch, shift_wall_clock, monkeypatch, tmp_path, seconds, same_boot):
    overrides = [f"run_dir={tmp_path}/run", UNREACHABLE, "resume=true", "recipe.max_epochs=100000"]
    began = time.monotonic()
    assert launch(*overrides, "time_limit_seconds=0.5")[0] == Exit.TIME_LIMIT
    shift_wall_clock(seconds)
    if not same_boot:
        monkeypatch.setattr(clock, "boot_id", lambda: "another")
    exit_code, run_dir = launch(*overrides, "time_limit_seconds=0.5")
    assert exit_code == Exit.TIME_LIMIT
    if seconds > 0 and not same_boot:  # as after an hour in a queue
        assert "clock" not in run_dir.record().flags
        assert run_dir.record().training.lost_seconds == pytest.approx(3600, abs=60)
        return
    check_times(run_dir, time.monotonic() - began)
    assert "the wall clock moved by" in check_excluded(run_dir)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_process_that_is_suspended(start_endless, tmp_path, launcher):
    process = start_endless(tmp_path / "run", f"launcher={launcher}")
    rank = process.pid
    if launcher == "local":
        (rank,) = (child.pid for child in psutil.Process(process.pid).children() if "worker" in str(child.cmdline()))
    os.kill(rank, signal.SIGCONT)  # as batch systems do; it runs, and loses nothing
    os.kill(rank, signal.SIGSTOP)
    time.sleep(3)
    os.kill(rank, signal.SIGCONT)
    time.sleep(0.5)
    process.terminate()
    output = process.communicate(timeout=600)[0]
    assert process.returncode == Exit.STOPPED, output
    run_dir = RunDir(tmp_path / "run", 1)
    assert run_dir.record().clock.suspended_seconds == pytest.approx(3, abs=1.5)
    assert "a process was suspended for up to" in check_excluded(run_dir)


def test_flag_of_an_earlier_attempt_stays(launch, tmp_path):
    overrides = [f"run_dir={tmp_path}/run", UNREACHABLE, "resume=true", "recipe.max_epochs=100000"]
    _, run_dir = launch(*overrides, "time_limit_seconds=0.5")
    assert "clock" not in run_dir.record().flags
    run_dir.update(lambda record: replace(record, clock=replace(record.clock, suspended_seconds=7.0)))
    _, run_dir = launch(*overrides, "time_limit_seconds=0.5")
    assert "up to 7.0 s" in run_dir.record().flags["clock"]
