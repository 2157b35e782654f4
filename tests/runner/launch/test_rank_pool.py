"""Ranks that start with the command: they run or end with it, and hand over nothing to other processes."""

import os
import pickle
import subprocess
import sys

import pytest

from timetrial.runner.cli.main import num_early_ranks
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.rank_pool import RankPool

START_EARLY = """
import os, sys, time
from pathlib import Path
from timetrial.runner.launch import rank_pool
rank_pool._WORKER = "echo_worker"
with rank_pool.RankPool() as pool:
    pool.start_waiting(2)
    waiting = list(pool._waiting)
    if sys.argv[1] == "use one":
        pool.import_modules(["no_such_module", "noisy", "noisy:prepare"])
        os.environ["ADDED"] = "later"
        del os.environ["REMOVED"]
        os.chdir(sys.argv[2])
        process = pool.spawn_rank(Path("/some/where"), {"RANK": "3"})
        assert process in waiting
        process.wait()
    elif sys.argv[1] == "fail":
        print(*(process.pid for process in waiting), flush=True)
        sys.exit(1)
assert not any(os.path.exists(f"/proc/{process.pid}") for process in waiting)
print(*(process.pid for process in waiting))
"""
ECHO_WORKER = """
import os, sys
from timetrial.runner.launch.rank_pool import LAUNCHER_PID, wait_for_run
def main():
    assert int(os.environ[LAUNCHER_PID]) == os.getppid()
    path = wait_for_run().run_dir
    prepared = sys.modules["noisy"].prepared if "noisy" in sys.modules else None
    print(path, os.environ["RANK"], os.environ["ADDED"], "REMOVED" in os.environ, prepared, os.getcwd())
"""


@pytest.mark.parametrize("usage", ["use one", "use none", "fail"])
def test_ranks_that_were_started_early_run_or_end_with_the_command(tmp_path, monkeypatch, usage):
    (tmp_path / "echo_worker.py").write_text(ECHO_WORKER)
    (tmp_path / "noisy.py").write_text("print('noise')\nprepared = []\ndef prepare(): prepared.append(print('more'))")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("REMOVED", "1")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-P", "-c", START_EARLY, usage, tmp_path / "elsewhere"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert completed.returncode == (usage == "fail"), completed.stderr
    lines = completed.stdout.splitlines()
    assert lines[:-1] == ([f"/some/where 3 later False [None] {tmp_path}/elsewhere"] if usage == "use one" else [])
    pids = lines[-1].split()
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.integration
def test_quiet_is_known_to_the_rank_that_started_before_it_was_read(tiny_ncf, tmp_path):
    for quiet in ([], ["--quiet"]):
        command = [sys.executable, "-P", "-m", "timetrial", "run", *quiet, *tiny_ncf, "recipe.max_epochs=1"]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert completed.returncode == Exit.TARGET_REACHED, completed.stderr
        assert ("ready after" in completed.stdout + completed.stderr) == (not quiet)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("run", 1),
        ("throughput gpus=1 gpus=4", 4),
        ("run gpus=16", 8),
        ("run gpus=two", 1),
        ("run gpus=0", 0),
        ("run -m seed=1,2", 1),
        ("run launcher=inline", 0),
        ("run gpus=2 launcher.hang_timeout_seconds=5", 2),
        ("run --help", 0),
        ("estimate gpus=2", 0),
        ("", 0),
    ],
)
def test_a_command_starts_the_ranks_that_it_will_need(arguments, count):
    assert num_early_ranks(arguments.split()) == count


def test_a_job_in_another_process_has_a_pool_of_its_own():
    pool = RankPool()
    pool._began = 0.0
    with pool:
        pool.start_waiting(1)
        copy = pickle.loads(pickle.dumps(pool))
        assert (len(pool._waiting), copy._waiting) == (1, [])
        assert copy.seconds() < pool.seconds()


def test_the_clock_starts_again_for_the_next_run():
    pool = RankPool()
    pool._began = 0.0
    assert pool.seconds() > 1e9
    pool.restart_clock()
    assert pool.seconds() < 1e9
