"""A private Slurm cluster: munge, controller and nodes run as ordinary processes, with all state in one folder."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

CONFIGURATION = """
ClusterName=testbed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its credential has expired. The default is two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# Leave the machine alone: no control groups, no accounting, no affinity.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=20
InactiveLimit=0
JobRequeue=1
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs=2 RealMemory=8000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=01:00:00 OverSubscribe=FORCE:8
"""


class Cluster:
    """A Slurm cluster with its state in `folder`; each node has two CPUs and two fake GPUs."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder, self.nodes = folder, nodes
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
        folder.mkdir(mode=0o755)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o400)
        controller_port, *node_ports = _free_ports(nodes + 1)
        text = CONFIGURATION.format(
            folder=folder, nodes=nodes, host=socket.gethostname().split(".")[0], user=_user(),
            controller_port=controller_port, node_ports=",".join(map(str, node_ports)),
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        # Slurm identifies a GPU by a device file, so any existing device files serve as fake GPUs.
        (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def start(self) -> None:
        """Start all daemons and wait until all nodes are idle."""
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        self.call(
            "munged", "--force", f"--key-file={self.folder}/munge.key", f"--socket={files['socket']}",
            f"--pid-file={files['pid']}", f"--log-file={files['log']}", f"--seed-file={files['seed']}",
        )  # fmt: skip
        self.call("slurmctld", "-f", self.folder / "slurm.conf")
        for node in range(1, self.nodes + 1):
            self.start_node(node)
        self.wait_until(lambda: self.call("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * self.nodes, 60)

    def start_node(self, node: int) -> None:
        """Start the daemon of a node."""
        (self.folder / f"spool-n{node}").mkdir(exist_ok=True)
        self.call("slurmd", "-f", self.folder / "slurm.conf", "-N", f"n{node}")

    def break_node(self, node: int) -> None:
        """Kill the daemon and all jobs of a node, as a power failure does, and mark the node as down."""
        processes = [psutil.Process(int((self.folder / f"slurmd-n{node}.pid").read_text()))]
        for process, environment in self._cluster_processes():
            if environment.get("SLURMD_NODENAME") == f"n{node}":
                with suppress(psutil.Error):
                    processes += [process, *(parent for parent in process.parents() if parent.name() == "slurmstepd")]
        _kill(processes)
        self.call("scontrol", "update", f"nodename=n{node}", "state=down", "reason=power")

    def stop(self) -> None:
        """Cancel all jobs, terminate all daemons, and kill the processes that remain."""
        subprocess.run(["scancel", "--full", "-u", _user()], env=self.environment, check=False)
        with suppress(AssertionError):
            self.wait_until_idle(30)
        for name in [f"slurmd-n{node}" for node in range(1, self.nodes + 1)] + ["slurmctld", "munge"]:
            file = self.folder / f"{name}.pid"
            if file.exists():
                os.kill(int(file.read_text()), signal.SIGTERM)
        time.sleep(1)
        _kill([process for process, _ in self._cluster_processes()])

    def _cluster_processes(self) -> list[tuple[psutil.Process, dict[str, str]]]:
        """Return daemons, steps and jobs with their environments."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if environment.get("SLURM_CONF", "") == str(self.folder / "slurm.conf"):
                    processes.append((process, environment))
        return processes

    def call(self, *command: object) -> str:
        """Run a command in the environment of the cluster and return its stdout."""
        result = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, (command, result.stdout, result.stderr)
        return result.stdout

    def preempt(self, array_task: str) -> None:
        """Send USR1 to the batch script of an array task, as `--signal=B:USR1` does."""
        # scancel retries although the signal was delivered. Kill it, or it would signal the restarted job as well.
        with subprocess.Popen(["scancel", "--signal=USR1", "--batch", array_task], env=self.environment) as scancel:
            time.sleep(1)
            scancel.kill()

    def queue(self) -> list[str]:
        """Return `<job>_<task> <state> <reason>` of all jobs that have not ended."""
        return self.call("squeue", "-h", "-r", "-o", "%i %T %r").splitlines()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until `condition()` is true; fail after the timeout."""
        end = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < end, (self.queue(), self.logs())
            time.sleep(0.1)

    def wait_until_idle(self, timeout_seconds: float) -> None:
        """Wait until all jobs have ended."""
        self.wait_until(lambda: not self.queue(), timeout_seconds)

    def logs(self) -> str:
        """Return the last lines of the daemons' logs."""
        return "\n".join(text for file in self.folder.glob("*.log") for text in file.read_text().splitlines()[-15:])


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)


def _user() -> str:
    return re.sub(r"\W", "", subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = sorted(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Return a running Slurm cluster of two nodes."""
    if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") or not shutil.which("munge"):
        pytest.skip("Slurm is not installed: install slurm-wlm and munge")
    cluster = Cluster(tmp_path_factory.mktemp("slurm") / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
