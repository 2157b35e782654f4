"""A run over several nodes, one launcher on each: which node this is, and how the launchers find one another.

Slurm's `srun` says which is the first node. It makes the run folder, opens a store on a port that its kernel picks, and
writes the place into status.json; the others wait there for it. No port is agreed on beforehand, so none can be taken.
"""

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from ..core.errors import LostRank
from ..record.run_dir import RunDir

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_LEAVE = 30.0
_LEFT = "timetrial/left"  # counts launchers that have left a meeting
# For data that one node has to prepare for all.
_PATIENCE_SECONDS = 3600.0


@dataclass(frozen=True)
class Meeting:
    """Where the launchers of a run meet; without others, anywhere on this machine."""

    id: str
    endpoint: str = "localhost:0"
    step: str = ""
    nodes: int = 1

    def settings(self) -> dict[str, Any]:
        """The part of torch's LaunchConfig that says where to meet."""
        found: dict[str, Any] = {"run_id": self.id, "rdzv_backend": "c10d", "rdzv_endpoint": self.endpoint}
        if self.nodes > 1:
            found |= {"local_addr": socket.gethostname(), "rdzv_configs": {"is_host": False}}
        return {"min_nodes": self.nodes, "max_nodes": self.nodes, **found}


def is_first() -> bool:
    """True on the node that makes and closes the run: the only one, or the first of an srun."""
    return int(os.environ.get("SLURM_NODEID", "0")) == 0


@contextmanager
def opened(nodes: int, folder: RunDir) -> Iterator[Meeting]:
    """A meeting for the launchers of `nodes` nodes, announced in the folder where there are several."""
    if nodes == 1:
        yield Meeting(uuid.uuid4().hex)
        return
    host = socket.gethostname()
    store = _store(host, 0, is_master=True, wait_for_workers=False)
    meeting = Meeting(uuid.uuid4().hex, f"{host}:{store.port}", _step(), nodes)
    folder.update_status(meeting=asdict(meeting))
    try:
        yield meeting
    finally:
        until = time.monotonic() + _SECONDS_TO_LEAVE
        while store.add(_LEFT, 0) < nodes - 1 and time.monotonic() < until:  # whose launchers still talk to the store
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        folder.update_status(meeting=None)


def leave(meeting: Meeting) -> None:
    """Tells the first node that this one's launcher needs the store no more."""
    host, port = meeting.endpoint.rsplit(":", 1)
    with suppress(RuntimeError):  # the first node is gone: nobody is left to tell
        _store(host, int(port), is_master=False, timeout=timedelta(seconds=_SECONDS_TO_LEAVE)).add(_LEFT, 1)


def announced(folder: RunDir) -> Meeting:
    """The meeting that the first node of this srun has opened; waits for it."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        meeting = folder.status().get("meeting")
        if meeting and meeting["step"] == _step():
            return Meeting(**meeting)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise LostRank(f"The first node did not begin {folder.path}: see its output, and that all nodes share this folder.")


def wait_for_the_end(folder: RunDir, meeting: Meeting) -> dict[str, Any]:
    """What status.json says once the first node has left the meeting and closed the run."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        status = folder.status()
        met = status.get("meeting") or {}
        if met.get("id") != meeting.id and status.get("state") != "running":
            return status
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise LostRank(f"The first node did not close {folder.path}: see its output, then run again.")


def _store(*arguments: Any, **named: Any) -> Any:
    from torch import distributed

    return distributed.TCPStore(*arguments, **named)  # type: ignore[attr-defined]


def _step() -> str:
    """Names this srun, and none before it in the same job."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
    return ".".join(os.environ.get(name, "0") for name in names)
