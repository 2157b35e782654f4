"""Runs over several nodes, with two launchers on this machine instead of two that srun starts."""

import csv
import os
import pickle
import socket
import subprocess
import sys
import time

import psutil
import pytest

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError, Exit
from timetrial.runner.launch import rendezvous
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.training import distributed

COMMAND = [sys.executable, "-P", "-m", "timetrial", "run"]
OVERRIDES = ["gpus=2", "recipe.global_batch_size=512", "recipe.target.v05.hit_rate=0.999"]


@pytest.fixture
def start(tiny_ncf, tmp_path):
    """Start the launcher of one of two nodes: start(node, *overrides) -> process."""

    def start_launcher(node, *overrides, step="0"):
        variables = {"SLURM_NODEID": str(node), "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": step}
        with open(tmp_path / f"node_{node}.txt", "a") as output:
            return subprocess.Popen(
                [*COMMAND, *tiny_ncf, *OVERRIDES, "launcher=slurm", "run_dir=run", *overrides],
                cwd=tmp_path, env=os.environ | variables, stdout=output, stderr=output,
            )  # fmt: skip

    return start_launcher


def quality_rows(run_dir):
    rows = csv.DictReader((run_dir / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["loss"], row["hit_rate"]) for row in rows]


@pytest.mark.integration
def test_two_nodes_equal_one(start, tiny_ncf, tmp_path):
    second = start(1, "recipe.max_epochs=3")  # either node may come first
    time.sleep(2)
    first = start(0, "recipe.max_epochs=3")
    assert [first.wait(600), second.wait(600)] == [Exit.TARGET_NOT_REACHED] * 2
    record = RunDir(tmp_path / "run", 1).record()
    assert (record.state, record.rendezvous) == ("target not reached", None)
    assert {path.name for path in (tmp_path / "run").glob("std*")} == {
        f"std{kind}_{rank}.txt" for kind in ("out", "err") for rank in (0, 1)
    }
    local = [*tiny_ncf, *OVERRIDES, "run_dir=local", "recipe.max_epochs=3"]
    subprocess.run([*COMMAND, *local], cwd=tmp_path, capture_output=True)
    assert quality_rows(tmp_path / "run") == quality_rows(tmp_path / "local")


@pytest.mark.integration
def test_torchrun_starts_the_launchers_of_two_nodes(tiny_ncf, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
                "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=a", "--no-python"]  # fmt: skip
    command = [*torchrun, *COMMAND, *tiny_ncf, "recipe.global_batch_size=512", "recipe.target.v05.hit_rate=0.05"]
    command += ["gpus=2", "launcher=torchrun", "run_dir=run"]
    nodes = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
             for _ in range(2)]  # fmt: skip
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    record = RunDir(tmp_path / "run", 1).record()
    assert (record.state, record.rendezvous) == ("target reached", None)
    assert record.config["launcher"]["nodes"] == 2
    assert {path.name for path in (tmp_path / "run").glob("stdout_*")} == {"stdout_0.txt", "stdout_1.txt"}


@pytest.mark.integration
def test_stop_signal_on_any_node_stops_all_and_a_new_step_resumes(start, tmp_path):
    overrides = ["recipe.max_epochs=100000", "resume=true"]
    launchers = [start(0, *overrides), start(1, *overrides)]
    while not (tmp_path / "run/quality.csv").exists():
        assert launchers[0].poll() is None
        time.sleep(0.05)
    launchers[1].terminate()
    assert [process.wait(600) for process in launchers] == [Exit.STOPPED] * 2
    launchers = [start(node, *overrides, "time_limit_seconds=1", step="1") for node in (1, 0)]
    assert [process.wait(600) for process in launchers] == [Exit.TIME_LIMIT] * 2
    record = RunDir(tmp_path / "run", 1).record()
    assert (record.run_class, record.restarts) == ("resumed", 1)


@pytest.mark.integration
def test_lost_ranks_of_one_node_end_the_run_on_all_nodes(start, tmp_path):
    overrides = ["recipe.max_epochs=100000", "launcher.hang_timeout_seconds=5"]
    launchers = [start(0, *overrides), start(1, *overrides)]
    while not (tmp_path / "run/quality.csv").exists():
        assert launchers[0].poll() is None
        time.sleep(0.05)
    for rank in psutil.Process(launchers[1].pid).children():
        rank.kill()
    assert [process.wait(600) for process in launchers] == [Exit.LOST_RANK] * 2


@pytest.mark.integration
def test_a_stranger_at_the_rendezvous_runs_no_code(start, tmp_path):
    """The store has no password, so a stranger may write into it; what is read from it is never unpickled."""
    mark = tmp_path / "mark"
    attack = pickle.dumps(_Touch(str(mark)))
    launchers = [start(0, "recipe.max_epochs=3")]
    while not (RunDir(tmp_path / "run", 1).exists and (found := RunDir(tmp_path / "run", 1).record().rendezvous)):
        assert launchers[0].poll() is None
        time.sleep(0.05)
    address, port = found.endpoint.rsplit(":", 1)
    bound = {entry.laddr for entry in psutil.Process(launchers[0].pid).net_connections() if entry.status == "LISTEN"}
    assert bound == {(address, int(port))}  # one address, not all interfaces
    stranger = distributed.connect(found.endpoint)
    for key in ("torch.rendezvous." + found.id, "timetrial/attack", *stranger.list_keys()):
        stranger.set(key.removeprefix("/"), attack)
    launchers.append(start(1, "recipe.max_epochs=3"))
    for launcher in launchers:
        launcher.wait(600)
    assert not mark.exists()
    pickle.loads(attack)
    assert mark.exists()  # the attack is a real one


class _Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize(("interface", "expected"), [("lo", ("lo", "127.0.0.1")), (None, None)])
def test_nodes_meet_on_the_configured_interface_or_that_of_the_host_name(interface, expected, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    name, address = rendezvous.cluster_interface(interface)
    assert address in {entry.address for entry in psutil.net_if_addrs()[name]}
    if expected:
        assert (name, address) == expected
    else:
        assert address == socket.gethostbyname(socket.gethostname())


def test_unknown_interface_is_refused():
    with pytest.raises(ConfigurationError, match=r"no interface nonsense0 .*: set launcher\.interface"):
        rendezvous.cluster_interface("nonsense0")


@pytest.mark.parametrize("variable", ["SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"])
def test_rendezvous_of_an_earlier_start_is_not_joined(variable, tmp_path, monkeypatch):
    run_dir = RunDir(tmp_path, 1)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(rendezvous, "_WAIT_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "_LEAVE_TIMEOUT_SECONDS", 1.0)  # no other node takes part
    with rendezvous.host(2, None, run_dir) as meeting_point:
        assert rendezvous.wait(run_dir) == meeting_point
        monkeypatch.setenv(variable, "2")
        with pytest.raises(Exception, match="The first node did not start"):
            rendezvous.wait(run_dir)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["launcher=slurm", "launcher.nodes=2", "gpus=3", "run_dir=a"], "gpus that the nodes divide"),
        (["launcher=local", "launcher.nodes=2", "gpus=2", "run_dir=a"], "use launcher=slurm"),
        (["launcher=slurm", "launcher.nodes=2", "gpus=2"], "add run_dir=FOLDER"),
        (["launcher=slurm", "launcher.nodes=0"], "launcher.nodes must be 1 or more"),
    ],
)
def test_rejects_ranks_that_do_not_fit_the_nodes(compose, overrides, message):
    with pytest.raises(ConfigurationError, match=message):
        validate(compose(*overrides))
