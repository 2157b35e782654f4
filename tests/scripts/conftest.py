"""A real Slurm of one's own: munge, controller and nodes as plain processes on this machine, all below one folder."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
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
# A requeued job waits until its credential has expired: two minutes, unless told.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# Nothing of the machine is touched: no control groups, no accounting, no affinity.
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
    """A Slurm whose state lies in `folder`, with two processors and two false GPUs a node."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder, self.nodes = folder, nodes
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
        folder.mkdir(mode=0o755)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o400)
        first, *ports = _free_ports(nodes + 1)
        text = CONFIGURATION.format(
            folder=folder, nodes=nodes, host=socket.gethostname().split(".")[0], user=_user(),
            controller_port=first, node_ports=",".join(map(str, ports)),
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        # A GPU of Slurm's is a device file; these are there, and are no GPUs.
        (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def start(self) -> None:
        """Starts everything and waits until all nodes are idle."""
        private = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        self.call(
            "munged", "--force", f"--key-file={self.folder}/munge.key", f"--socket={private['socket']}",
            f"--pid-file={private['pid']}", f"--log-file={private['log']}", f"--seed-file={private['seed']}",
        )  # fmt: skip
        self.call("slurmctld", "-f", self.folder / "slurm.conf")
        for node in range(1, self.nodes + 1):
            self.start_node(node)
        self.until(lambda: self.call("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * self.nodes, 60)

    def start_node(self, node: int) -> None:
        """Starts a node's daemon."""
        (self.folder / f"spool-n{node}").mkdir(exist_ok=True)
        self.call("slurmd", "-f", self.folder / "slurm.conf", "-N", f"n{node}")

    def break_node(self, node: int) -> None:
        """What a power cut does to a node: daemon and jobs are gone at once, and the controller notices."""
        lost = [psutil.Process(int((self.folder / f"slurmd-n{node}.pid").read_text()))]
        for process, here in self._of_this_cluster():
            if here.get("SLURMD_NODENAME") == f"n{node}":
                with suppress(psutil.Error):
                    lost += [process, *(parent for parent in process.parents() if parent.name() == "slurmstepd")]
        _kill(lost)
        self.call("scontrol", "update", f"nodename=n{node}", "state=down", "reason=power")

    def stop(self) -> None:
        """Ends all jobs and daemons, and whatever of them has not ended by itself."""
        subprocess.run(["scancel", "--full", "-u", _user()], env=self.environment, check=False)
        with suppress(AssertionError):
            self.until(lambda: not self.queue(), 30)
        for name in [f"slurmd-n{node}" for node in range(1, self.nodes + 1)] + ["slurmctld", "munge"]:
            file = self.folder / f"{name}.pid"
            if file.exists():
                os.kill(int(file.read_text()), signal.SIGTERM)
        time.sleep(1)
        _kill([process for process, _ in self._of_this_cluster()])

    def _of_this_cluster(self) -> list[tuple[psutil.Process, dict[str, str]]]:
        """Daemons, steps and jobs with their environments."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                here = process.environ()
                if here.get("SLURM_CONF", "") == str(self.folder / "slurm.conf"):
                    found.append((process, here))
        return found

    def call(self, *words: object) -> str:
        """Runs a command in the cluster's environment; returns what it printed."""
        done = subprocess.run(list(map(str, words)), env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def preempt(self, element: str) -> None:
        """Sends USR1 to an array element's script, as `--signal=B:USR1` does."""
        # scancel hears that it should try again, though the signal went through, and would stop the next start too.
        with subprocess.Popen(["scancel", "--signal=USR1", "--batch", element], env=self.environment) as scancel:
            time.sleep(1)
            scancel.kill()

    def queue(self) -> list[str]:
        """`<job>_<task> <state> <restarts>` of everything that has not ended."""
        return self.call("squeue", "-h", "-r", "-o", "%i %T %r").splitlines()

    def until(self, true, seconds: float):
        """Waits for a condition, and returns what it gave."""
        end = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < end, (self.queue(), self.logs())
            time.sleep(0.1)
        return found

    def until_empty(self, seconds: float) -> None:
        """Waits until every job has ended."""
        self.until(lambda: not self.queue(), seconds)

    def logs(self) -> str:
        """The end of what the daemons have said."""
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
    """A running Slurm of two nodes."""
    if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") or not shutil.which("munge"):
        pytest.skip("no Slurm here: install slurm-wlm and munge")
    cluster = Cluster(tmp_path_factory.mktemp("slurm") / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
