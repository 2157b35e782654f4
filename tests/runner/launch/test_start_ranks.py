"""What the ranks of a run offer to strangers: where they listen, and who can enter the folder in which they meet."""

import os
import stat
import subprocess
import sys
import time

import psutil
import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.rank_pool import LAUNCHER_PID
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
    variables = distributed.rank_environment("", 0, 0, 1) | {LAUNCHER_PID: "1"}
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
