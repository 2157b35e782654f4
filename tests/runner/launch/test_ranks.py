"""What the ranks of a run offer to strangers: where they listen, and who can enter the folder in which they meet."""

import os
import stat
import subprocess
import sys
import time

import psutil
import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.launch import early_ranks, worker
from timetrial.runner.training import distributed

pytestmark = pytest.mark.integration


@pytest.fixture
def sockets(tiny_ncf, tmp_path):
    """Return the listening sockets of a run in training: sockets(*overrides) -> {(address, port), ...}."""

    def listen(*overrides):
        endless = ["recipe.global_batch_size=512", "recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000"]
        command = [sys.executable, "-P", "-m", "timetrial", "run", *tiny_ncf, *endless, f"run_dir={tmp_path}/run"]
        with subprocess.Popen(
            [*command, *overrides], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as launcher:
            try:
                while not (tmp_path / "run" / "quality.csv").exists():
                    assert launcher.poll() is None
                    time.sleep(0.1)
                processes = [psutil.Process(launcher.pid)]
                processes += processes[0].children(recursive=True)
                connections = [entry for process in processes for entry in process.net_connections()]
                return len(processes), {entry.laddr for entry in connections if entry.status == psutil.CONN_LISTEN}
            finally:
                launcher.kill()

    return listen


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_single_rank_listens_nowhere(sockets, launcher):
    num_processes, listening = sockets(f"launcher={launcher}")
    assert num_processes >= (2 if launcher == "local" else 1)
    assert listening == set()


def test_ranks_of_one_node_listen_on_the_loopback_interface_alone(sockets):
    num_processes, listening = sockets("gpus=2")
    assert num_processes >= 3
    assert {address for address, port in listening} <= {"127.0.0.1", "::1"}


def test_rank_of_a_launcher_that_is_gone_ends_at_once():
    """A launcher may be killed before its rank has asked the kernel for a signal."""
    command = [sys.executable, "-P", "-c", "from timetrial.runner.launch.worker import main; main()"]
    variables = distributed.rank_environment("", 0, 0, 1) | {worker.LAUNCHER_PID: "1"}
    completed = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (Exit.STOPPED, "")


def test_only_the_user_can_enter_the_folder_in_which_ranks_meet():
    previous = os.umask(0)
    try:
        with distributed.local_store() as store:
            assert stat.S_IMODE(os.stat(os.path.dirname(store)).st_mode) == 0o700
        assert not os.path.exists(os.path.dirname(store))
    finally:
        os.umask(previous)


START_EARLY = """
import os, sys, time
from pathlib import Path
from timetrial.runner.launch import early_ranks
early_ranks._WORKER = "echo_worker"
with early_ranks.started_early(["run", "gpus=2"]):
    waiting = list(early_ranks._waiting)
    if sys.argv[1] == "use one":
        early_ranks.import_modules(["no_such_module", "noisy"])
        os.environ["ADDED"] = "later"
        del os.environ["REMOVED"]
        os.chdir(sys.argv[2])
        process = early_ranks.run_rank(Path("/some/where"), {"RANK": "3"})
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
from timetrial.runner.launch.early_ranks import LAUNCHER_PID, wait_for_run_dir
def main():
    assert int(os.environ[LAUNCHER_PID]) == os.getppid()
    path = wait_for_run_dir()
    print(path, os.environ["RANK"], os.environ["ADDED"], "REMOVED" in os.environ, "noisy" in sys.modules, os.getcwd())
"""


@pytest.mark.parametrize("usage", ["use one", "use none", "fail"])
def test_ranks_that_were_started_early_run_or_end_with_the_command(tmp_path, monkeypatch, usage):
    (tmp_path / "echo_worker.py").write_text(ECHO_WORKER)
    (tmp_path / "noisy.py").write_text("print('noise')")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("REMOVED", "1")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-P", "-c", START_EARLY, usage, tmp_path / "elsewhere"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert completed.returncode == (usage == "fail"), completed.stderr
    lines = completed.stdout.splitlines()
    assert lines[:-1] == ([f"/some/where 3 later False True {tmp_path}/elsewhere"] if usage == "use one" else [])
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


def test_sweeps_and_inline_runs_start_no_rank_early():
    for arguments in (["run", "-m", "seed=1,2"], ["run", "launcher=inline"]):
        with early_ranks.started_early(arguments):
            assert not early_ranks._waiting
