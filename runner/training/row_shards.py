"""Parameters whose rows are divided over the ranks: each rank holds its own rows, a checkpoint holds all."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .distributed import World

_ConvertRows = Callable[[Tensor, Sequence[int]], Tensor]  # rows, and the bounds of all ranks


class RowShards:
    """The sharded parameters of one rank, by the names and bounds of `Data.sharded_rows`."""

    def __init__(
        self, bounds: Mapping[str, Sequence[int]], model: nn.Module, optimizer: Optimizer, world: World
    ) -> None:
        self._bounds, self._world = bounds, world
        self._parameters = [model.get_parameter(name) for name in bounds]
        numbers = {parameter: number for number, parameter in enumerate(_parameters_of(optimizer))}
        self._numbers = {name: numbers[parameter] for name, parameter in zip(bounds, self._parameters, strict=True)}

    def gather(self, model: dict[str, Any], optimizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state dicts of model and optimizer with all rows; all ranks call it at the same time."""
        return self._convert(model, optimizer, self._all_rows)

    def own(self, model: dict[str, Any], optimizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return these state dicts of all rows with only the rows of this rank."""
        rank = self._world.rank
        return self._convert(model, optimizer, lambda rows, bounds: rows[bounds[rank] : bounds[rank + 1]])

    def square_sum(self) -> Tensor:
        """Return the sum of the squared gradients over all ranks."""
        own = torch.stack([_gradient(parameter).square().sum() for parameter in self._parameters]).sum()
        return self._world.all_reduce_sum(own)

    def nan_unless_finite(self) -> Tensor:
        """Return 0 if the gradients of all ranks are finite, else NaN."""
        own = torch.stack([(_gradient(parameter) * 0).sum() for parameter in self._parameters]).sum()
        return self._world.all_reduce_sum(own)

    def _convert(
        self, model: dict[str, Any], optimizer: dict[str, Any], rows: _ConvertRows
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        model, states = dict(model), dict(optimizer["state"])
        for name, bounds in self._bounds.items():
            shape, number = model[name].shape, self._numbers[name]
            model[name] = rows(model[name], bounds)
            if number in states:  # not before the first step
                values = states[number].items()
                states[number] = {
                    key: rows(value, bounds) if isinstance(value, Tensor) and value.shape == shape else value
                    for key, value in values
                }
        return model, optimizer | {"state": states}

    def _all_rows(self, own: Tensor, bounds: Sequence[int]) -> Tensor:
        rows = own.new_empty(bounds[-1], *own.shape[1:])
        rows[bounds[self._world.rank] : bounds[self._world.rank + 1]] = own
        for rank, (start, stop) in enumerate(pairwise(bounds)):
            dist.broadcast(rows[start:stop], src=rank, group=self._world.device_group)
        return rows


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
