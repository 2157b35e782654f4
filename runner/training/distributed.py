"""Ranks: who they are, how they agree, how long they wait for one another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..hardware import devices

# Rank 0 may score or prepare data for long while the others wait.
_CONTROL_TIMEOUT = timedelta(minutes=60)


@dataclass
class World:
    """The ranks of a run. `gradients` moves device tensors and gives up fast; `control` moves objects, patiently."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    gradients: Any = None
    control: Any = None

    def all_reduce_max(self, number: int) -> int:
        """The greatest `number` of all ranks, on every rank."""
        if self.size == 1:
            return number
        numbers = torch.tensor([number])
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.control)
        return int(numbers.item())

    def any(self, flag: bool) -> bool:
        """True on every rank if `flag` is true on one of them."""
        return bool(self.all_reduce_max(int(flag)))

    def gather(self, thing: Any) -> list[Any]:
        """Every rank's `thing` in rank order, on rank 0; an empty list elsewhere."""
        if self.size == 1:
            return [thing]
        things = [None] * self.size if self.rank == 0 else None
        dist.gather_object(thing, things, dst=0, group=self.control)
        return things or []

    def broadcast(self, thing: Any) -> Any:
        """Rank 0's `thing`, on every rank."""
        if self.size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Adds a device tensor up over the ranks in place, without waiting for the device where its backend allows."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.gradients)
        return tensor

    def barrier(self) -> None:
        """Waits until every rank has come here."""
        if self.size > 1:
            dist.barrier(group=self.control)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Rank 0 runs the body first, the others after it: for work that leaves a file behind."""
        if self.rank != 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()


@contextmanager
def join(device: torch.device, hang_timeout_seconds: float, *, peer_to_peer: bool = True) -> Iterator[World]:
    """The world of this process, from the environment that the launcher set; a world of one needs no process group.

    Without `peer_to_peer` the cards of a node reach one another through the host alone.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    devices.link_peers(peer_to_peer)
    dist.init_process_group("gloo", timeout=_CONTROL_TIMEOUT)
    gradients = dist.new_group(backend=devices.collectives(device), timeout=timedelta(seconds=hang_timeout_seconds))
    yield World(
        rank=dist.get_rank(),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        gradients=gradients,
        control=dist.group.WORLD,
    )
    dist.destroy_process_group()  # not after an error: it would wait for what the other ranks have not come to
