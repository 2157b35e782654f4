"""How the launchers of a run over several nodes find each other.

`srun` or `torchrun` says which node is the first. It makes the run directory, hosts a store on an address of the
cluster's network and a port that the kernel picks, and writes them to the run record, where the other nodes wait for
them. No port is agreed on beforehand. The ranks meet in that store too. Whoever reaches it can disturb the run: the
network between the nodes must be trusted.
"""

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil

from ..core.errors import ConfigurationError, LostRank
from ..record.run_dir import RunDir
from ..record.run_record import Rendezvous, RunRecord

_POLL_SECONDS = 0.5
_LEAVE_TIMEOUT_SECONDS = 30.0
_LEFT = "timetrial/left"  # key that counts the launchers that have left
_WAIT_TIMEOUT_SECONDS = 3600.0  # the first node may prepare data for all


def is_first_node() -> bool:
    """Return whether this node manages the run: the only node, or the first of an srun or torchrun."""
    return node_rank() == 0


def node_rank() -> int:
    """Return the number of this node within the run, from 0."""
    return int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0")))


def cluster_interface(configured: str | None) -> tuple[str, str]:
    """Return the network interface between the nodes and its IPv4 address: as configured, else that of the host name.

    Raises `ConfigurationError` if this node has no such interface.
    """
    name = configured or os.environ.get("GLOO_SOCKET_IFNAME")
    hostname = socket.gethostname()
    with suppress(OSError):
        resolved = socket.gethostbyname(hostname)
        for interface, addresses in psutil.net_if_addrs().items():
            for entry in addresses:
                if entry.family == socket.AF_INET and (interface == name if name else entry.address == resolved):
                    return interface, entry.address
    wanted = f"no interface {name} with an IPv4 address" if name else "no interface with the address of its name"
    raise ConfigurationError(f"Node {hostname} has {wanted}: set launcher.interface to one that `ip address` lists.")


@contextmanager
def host(nodes: int, interface: str | None, run_dir: RunDir) -> Iterator[Rendezvous]:
    """Host the rendezvous of `nodes` launchers; its address is in the run record meanwhile."""
    from ..training import distributed

    address = cluster_interface(interface)[1]
    store, port = distributed.listen(address)
    rendezvous = Rendezvous(uuid.uuid4().hex, f"{address}:{port}", _start_name())
    run_dir.update(lambda record: replace(record, rendezvous=rendezvous))
    try:
        yield rendezvous
    finally:
        deadline = time.monotonic() + _LEAVE_TIMEOUT_SECONDS
        while store.add(_LEFT, 0) < nodes - 1 and time.monotonic() < deadline:  # the others still use the store
            time.sleep(_POLL_SECONDS)
        run_dir.update(lambda record: replace(record, rendezvous=None))


def wait(run_dir: RunDir) -> Rendezvous:
    """Wait until the first node of this start hosts a rendezvous, and return it."""
    deadline = time.monotonic() + _WAIT_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        rendezvous = run_dir.record().rendezvous
        if rendezvous and rendezvous.step == _start_name():
            return rendezvous
        time.sleep(_POLL_SECONDS)
    raise LostRank(
        f"The first node did not start {run_dir.path}: check its output, and that all nodes share this folder."
    )


def leave(rendezvous: Rendezvous) -> None:
    """Tell the first node that this launcher no longer needs the store."""
    from ..training import distributed

    with suppress(RuntimeError):  # the first node is gone
        distributed.connect(rendezvous.endpoint, _LEAVE_TIMEOUT_SECONDS).add(_LEFT, 1)


def wait_for_final_record(run_dir: RunDir, rendezvous: Rendezvous) -> RunRecord:
    """Wait until the first node has finalized the run, and return its record."""
    deadline = time.monotonic() + _WAIT_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        record = run_dir.record()
        closed = record.rendezvous is None or record.rendezvous.id != rendezvous.id
        if closed and not record.is_running:
            return record
        time.sleep(_POLL_SECONDS)
    raise LostRank(f"The first node did not finalize {run_dir.path}: check its output, then run again.")


def _start_name() -> str:
    """Return a name of this srun or torchrun that no earlier one of the same job had."""
    slurm = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
    names = (*slurm, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return ".".join(os.environ.get(name, "0") for name in names)
