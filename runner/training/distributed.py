"""The process group of a run: ranks, collectives and their timeouts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..hardware import devices

# Rank 0 may score or prepare data for a long time while the others wait.
_CONTROL_TIMEOUT = timedelta(minutes=60)


@dataclass
class World:
    """The ranks of a run.

    `device_group` reduces device tensors and times out fast; `control_group` exchanges Python objects and waits.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device_group: Any = None
    control_group: Any = None

    def all_reduce_max(self, number: int) -> int:
        """Return the largest `number` of all ranks, on every rank."""
        if self.size == 1:
            return number
        numbers = torch.tensor([number])
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.control_group)
        return int(numbers.item())

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank, on every rank."""
        return bool(self.all_reduce_max(int(flag)))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order on rank 0, an empty list elsewhere."""
        if self.size == 1:
            return [value]
        values = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.control_group)
        return values or []

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control_group)
        return values[0]

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a device tensor over the ranks in place; asynchronous to the host where the backend allows."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.device_group)
        return tensor

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        if self.size > 1:
            dist.barrier(group=self.control_group)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the body on rank 0 first and on the others afterwards: for work that leaves a file behind."""
        if self.rank != 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()


@contextmanager
def join_world(device: torch.device, hang_timeout_seconds: float, *, peer_to_peer: bool = True) -> Iterator[World]:
    """Yield the world of this process, from the environment variables of the launcher.

    A single rank needs no process group. Without `peer_to_peer`, GPUs of a node exchange data through host memory only.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    devices.set_peer_to_peer(peer_to_peer)
    dist.init_process_group("gloo", timeout=_CONTROL_TIMEOUT)
    timeout = timedelta(seconds=hang_timeout_seconds)
    device_group = dist.new_group(backend=devices.collective_backend(device), timeout=timeout)
    yield World(
        rank=dist.get_rank(),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        device_group=device_group,
        control_group=dist.group.WORLD,
    )
    dist.destroy_process_group()  # not after an error: it would wait for collectives that the other ranks never reach
