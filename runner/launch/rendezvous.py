"""How the launchers of a run over several nodes find each other.

Slurm's `srun` says which node is the first. It makes the run directory, opens a store on a port that the kernel picks,
and writes the address to the run record, where the other nodes wait for it. No port is agreed on beforehand.
"""

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from ..core.errors import LostRank
from ..record.run_dir import RunDir
from ..record.run_record import Rendezvous, RunRecord

_POLL_SECONDS = 0.5
_LEAVE_TIMEOUT_SECONDS = 30.0
_LEFT = "timetrial/left"  # key that counts the launchers that have left
_WAIT_TIMEOUT_SECONDS = 3600.0  # the first node may prepare data for all


def launch_options(rendezvous: Rendezvous) -> dict[str, Any]:
    """Return the part of torch's LaunchConfig that says where to meet."""
    options: dict[str, Any] = {
        "run_id": rendezvous.id,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": rendezvous.endpoint,
        "min_nodes": rendezvous.nodes,
        "max_nodes": rendezvous.nodes,
    }
    if rendezvous.nodes > 1:
        options |= {"local_addr": socket.gethostname(), "rdzv_configs": {"is_host": False}}
    return options


def is_first_node() -> bool:
    """Return whether this node manages the run: the only node, or the first of an srun."""
    return int(os.environ.get("SLURM_NODEID", "0")) == 0


@contextmanager
def host(nodes: int, run_dir: RunDir) -> Iterator[Rendezvous]:
    """Host the rendezvous of `nodes` launchers; with several, its address is in the run record meanwhile."""
    if nodes == 1:
        yield Rendezvous(uuid.uuid4().hex, "localhost:0", "", nodes)
        return
    hostname = socket.gethostname()
    store = _connect(hostname, 0, is_master=True, wait_for_workers=False)
    rendezvous = Rendezvous(uuid.uuid4().hex, f"{hostname}:{store.port}", _slurm_step(), nodes)
    run_dir.update_record(rendezvous=rendezvous)
    try:
        yield rendezvous
    finally:
        deadline = time.monotonic() + _LEAVE_TIMEOUT_SECONDS
        while store.add(_LEFT, 0) < nodes - 1 and time.monotonic() < deadline:  # the others still use the store
            time.sleep(_POLL_SECONDS)
        run_dir.update_record(rendezvous=None)


def wait(run_dir: RunDir) -> Rendezvous:
    """Wait until the first node of this srun hosts a rendezvous, and return it."""
    deadline = time.monotonic() + _WAIT_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        rendezvous = run_dir.record().rendezvous
        if rendezvous and rendezvous.step == _slurm_step():
            return rendezvous
        time.sleep(_POLL_SECONDS)
    raise LostRank(
        f"The first node did not start {run_dir.path}: check its output, and that all nodes share this folder."
    )


def leave(rendezvous: Rendezvous) -> None:
    """Tell the first node that this launcher no longer needs the store."""
    hostname, port = rendezvous.endpoint.rsplit(":", 1)
    with suppress(RuntimeError):  # the first node is gone
        _connect(hostname, int(port), is_master=False, timeout=timedelta(seconds=_LEAVE_TIMEOUT_SECONDS)).add(_LEFT, 1)


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


def _connect(*arguments: Any, **options: Any) -> Any:
    from torch import distributed

    return distributed.TCPStore(*arguments, **options)  # type: ignore[attr-defined]


def _slurm_step() -> str:
    """Return a name of this srun that no earlier one of the same job had."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
    return ".".join(os.environ.get(name, "0") for name in names)
