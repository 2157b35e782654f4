"""The replicas of a model: each rank holds one, and after every step they are equal.

Two things differ between ranks: rows of sharded parameters, of which each rank holds its own (row_shards.py), and the
running statistics of batch norms, which each rank takes from its own batches until an evaluation averages them.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core import execution_paths
from . import all_reduce
from .distributed import World
from .gradient_reduction import GradientReduction
from .row_shards import RowShards

_RUNNING_STATISTICS = ("running_mean", "running_var")  # of PyTorch's batch norms
_FAST_LINKS_GB_S = 100.0  # bus bandwidth; measured with 25 (through host memory) and 230 to 300 (NVLink of H200s)


class Replication:
    """The only replica, of a run on one rank: there is nothing to exchange."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())

    def paused(self) -> AbstractContextManager[None]:
        """Return a context whose backward passes accumulate gradients on this rank alone."""
        return nullcontext()

    def finish(self) -> None:
        """Replace the gradients of the backward passes of a step by their sums over the ranks."""

    def total_norm(self) -> Tensor:
        """Return the L2 norm of all gradients, after `finish()`."""
        return _total_norm(self._parameters)

    def average_statistics(self) -> None:
        """Average the running statistics of batch norms over the ranks."""

    def statistics(self) -> list[Tensor]:
        """Return the running statistics in which this rank differs from the others."""
        return []

    def load_statistics(self, statistics: Sequence[Tensor]) -> None:
        """Restore the `statistics()` of this rank."""

    def gather_rows(self, model: dict[str, Any], optimizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return these state dicts with the rows of all ranks; all ranks call it at the same time."""
        return model, optimizer

    def select_rows(self, model: dict[str, Any], optimizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return these state dicts of all ranks' rows with only the rows of this rank."""
        return model, optimizer


class MultiRankReplication(Replication):
    """One of several replicas: starts from the weights of rank 0, and sums gradients over the ranks of `world`.

    `sharded_rows` is that of `Data`. With `skips_nonfinite`, as under a gradient scaler, all ranks skip an update if a
    gradient of sharded rows is not finite on one of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sharded_rows: Mapping[str, Sequence[int]],
        world: World,
        *,
        skips_nonfinite: bool,
    ) -> None:
        self._world, self._skips_nonfinite = world, skips_nonfinite
        self._shards = RowShards(sharded_rows, model, optimizer, world) if sharded_rows else None
        self._replicated = [value for name, value in model.named_parameters() if name not in sharded_rows]
        self._statistics = [
            buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] in _RUNNING_STATISTICS
        ]
        # Initial weights may differ in rounding if the ranks have CPUs of different kinds.
        for tensor in (*self._replicated, *model.buffers()):
            dist.broadcast(tensor.detach(), src=0, group=world.device_group)
        fast_links = all_reduce.measure_once(world, self._replicated[0].device) >= _FAST_LINKS_GB_S
        # A measurement must not decide the order of sums where bits have to be equal.
        overlap = not fast_links or torch.are_deterministic_algorithms_enabled()
        execution_paths.take("gradient_exchange", "in the backward pass" if overlap else "after the backward pass")
        self._reduction = GradientReduction(self._replicated, world, overlap=overlap)

    def paused(self) -> AbstractContextManager[None]:
        """Return a context whose backward passes accumulate gradients on this rank alone."""
        return self._reduction.paused()

    def finish(self) -> None:
        """Replace the gradients of the backward passes of a step by their sums over the ranks."""
        self._reduction.finish()
        if self._shards is not None and self._skips_nonfinite:
            gradient = self._replicated[0].grad
            assert gradient is not None
            gradient += self._shards.nan_unless_finite()

    def total_norm(self) -> Tensor:
        """Return the L2 norm of all gradients, with the rows of all ranks."""
        norm = _total_norm(self._replicated)
        return norm if self._shards is None else (norm.square() + self._shards.square_sum()).sqrt()

    def average_statistics(self) -> None:
        """Average the running statistics of batch norms over the ranks."""
        for statistic in self._statistics:
            self._world.all_reduce_sum(statistic)
            statistic /= self._world.size

    def statistics(self) -> list[Tensor]:
        """Return the running statistics of this rank's batch norms."""
        return self._statistics

    def load_statistics(self, statistics: Sequence[Tensor]) -> None:
        """Restore the `statistics()` of this rank."""
        for statistic, saved in zip(self._statistics, statistics, strict=True):
            statistic.copy_(saved)

    def gather_rows(self, model: dict[str, Any], optimizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return these state dicts with the rows of all ranks; all ranks call it at the same time."""
        return (model, optimizer) if self._shards is None else self._shards.gather(model, optimizer)

    def select_rows(self, model: dict[str, Any], optimizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return these state dicts of all ranks' rows with only the rows of this rank."""
        return (model, optimizer) if self._shards is None else self._shards.own(model, optimizer)


def replicate(
    model: nn.Module,
    optimizer: Optimizer,
    sharded_rows: Mapping[str, Sequence[int]],
    world: World,
    *,
    skips_nonfinite: bool,
) -> Replication:
    """Make `model` one of the replicas of `world`."""
    if world.size == 1:
        return Replication(model)
    return MultiRankReplication(model, optimizer, sharded_rows, world, skips_nonfinite=skips_nonfinite)


def _total_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    norm: Tensor = nn.utils.get_total_norm([value.grad for value in parameters if value.grad is not None])
    return norm
