"""The process group of a run: ranks, collectives and their timeouts.

Nothing that arrives from another rank is unpickled: values travel as the bytes of `messages`.
"""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from ..core import execution_paths
from ..core.errors import LostRank
from ..hardware import devices
from . import messages

# Rank 0 may score or prepare data for a long time while the others wait.
_CONTROL_TIMEOUT = timedelta(minutes=60)
# Ranks evaluate unequal parts, so they wait for each other longer than at a step: this many hang timeouts.
_EVALUATION_TIMEOUTS = 4
_STORE = "TIMETRIAL_STORE"  # where the ranks meet: a file, or host:port of a store that the first node hosts


@dataclass
class World:
    """The ranks of a run.

    `device_group` reduces device tensors and times out fast; `control_group` exchanges values and waits.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device_group: Any = None
    control_group: Any = None
    hang_timeout_seconds: float = 45.0
    bus_gb_s: float | None = None  # bus bandwidth of the device group, once `all_reduce.measure_once` has measured it

    def all_reduce_max(self, number: int) -> int:
        """Return the largest `number` of all ranks, on every rank."""
        return number if self.size == 1 else self.start_all_reduce_max(number)()

    def start_all_reduce_max(self, number: int) -> Callable[[], int]:
        """Start `all_reduce_max` among several ranks; the returned function waits for its result."""
        numbers = torch.tensor([number])
        work = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.control_group, async_op=True)

        def result() -> int:
            work.wait()
            return int(numbers.item())

        return result

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank, on every rank."""
        return bool(self.all_reduce_max(int(flag)))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order on rank 0, an empty list elsewhere.

        A value is what `messages.encode` takes, or a dataclass of such values.
        """
        if self.size == 1:
            return [value]
        message = messages.encode(messages.fields_of(value))
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(message)]), group=self.control_group)
        # A gather needs tensors of one size.
        padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        padded[: len(message)] = message
        received = [torch.empty_like(padded) for _ in sizes] if self.rank == 0 else None
        dist.gather(padded, received, dst=0, group=self.control_group)
        parts = [part[: int(size)] for part, size in zip(received or [], sizes, strict=False)]
        return [messages.like(value, messages.decode(part)) for part in parts]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value`, which `messages.encode` takes, on every rank."""
        if self.size == 1:
            return value
        message = messages.encode(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(message)])
        dist.broadcast(size, src=0, group=self.control_group)
        if self.rank != 0:
            message = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(message, src=0, group=self.control_group)
        return messages.decode(message)

    def node_processes(self, nodes: int) -> list[int]:
        """Return the process ids of the ranks on this rank's node; every rank of the run calls this."""
        processes: list[int] = self.broadcast(self.gather(os.getpid()))
        ranks = self.size // nodes
        first = self.rank // ranks * ranks
        return processes[first : first + ranks]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum a device tensor over the ranks in place; asynchronous to the host where the backend allows."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.device_group)
        return tensor

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        if self.size > 1:
            dist.barrier(group=self.control_group)

    def wait_for_evaluation(self) -> None:
        """Wait until every rank has evaluated its part; raise `LostRank` for a rank that hangs in it."""
        if self.size == 1:
            return
        seconds = _EVALUATION_TIMEOUTS * self.hang_timeout_seconds
        try:
            dist.monitored_barrier(self.control_group, timeout=timedelta(seconds=seconds))
        except RuntimeError as error:
            raise LostRank(
                f"A rank did not finish its part of an evaluation within {seconds:g} s of another: find out what "
                "holds it up (see stderr_*.txt in the run directory), then resume the run."
            ) from error

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the body on rank 0 first and on the others afterwards: for work that leaves a file behind."""
        if self.rank != 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()


@contextmanager
def local_store() -> Iterator[str]:
    """Yield where the ranks of one node meet: a file in a folder of this node that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="timetrial_") as folder:  # made with mode 0700
        yield f"{folder}/store"


def rank_environment(store: str, rank: int, local_rank: int, world_size: int, interface: str = "") -> dict[str, str]:
    """Return the environment variables of a rank, from which `join_world` makes its world.

    The backends of the collectives listen on `interface` only; without one, on the loopback interface of the node.
    """
    variables = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world_size), _STORE: store}
    interface = interface or interface_of("127.0.0.1")
    if interface:
        # A prefix of names, unless an equals sign comes first.
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return variables


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an IP address, empty if there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return ""


def listen(address: str) -> tuple[Any, int]:
    """Host a store for ranks of several nodes on one address of this node; return it and its port.

    The store has no password: whoever reaches the address can disturb the run, but runs no code by it.
    """
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )
    return store, port


def connect(endpoint: str, timeout_seconds: float = 300.0) -> Any:
    """Return a client of the store at `host:port`; raise `RuntimeError` if nothing answers in time."""
    host, port = endpoint.rsplit(":", 1)
    timeout = timedelta(seconds=timeout_seconds)
    return dist.TCPStore(host, int(port), is_master=False, timeout=timeout)  # type: ignore[attr-defined]


@contextmanager
def join_world(device: torch.device, hang_timeout_seconds: float, *, peer_to_peer: bool = True) -> Iterator[World]:
    """Yield the world of this process, from the variables of `rank_environment`.

    A single rank needs no process group. Without `peer_to_peer`, GPUs of a node exchange data through host memory only.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    devices.configure_collectives(device, peer_to_peer=peer_to_peer)
    where = os.environ[_STORE]
    store = dist.FileStore(where, size) if where.startswith("/") else connect(where)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", timeout=_CONTROL_TIMEOUT, store=store, rank=rank, world_size=size)
    timeout = timedelta(seconds=hang_timeout_seconds)
    device_group: Any = dist.new_group(backend=devices.collective_backend(device), timeout=timeout)
    execution_paths.take("collectives", dist.get_backend(device_group))
    yield World(
        rank=rank,
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        device_group=device_group,
        control_group=dist.group.WORLD,
        hang_timeout_seconds=hang_timeout_seconds,
    )
    dist.destroy_process_group()  # not after an error: it would wait for collectives that the other ranks never reach
