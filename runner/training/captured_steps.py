"""Training steps captured in device graphs, one for each shape of batch, and replayed without Python.

A graph reads its batch, the learning rates and the loss weight from tensors of its own, and writes weights and
optimizer state where they were when it was captured. Those tensors must therefore never be replaced:
`load_optimizer_state` overwrites them.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ..hardware.device_graphs import DeviceGraph, capture_graph
from .workload import Batch

_EAGER_PASSES = 2  # on the stream of the capture: kernels choose their workspaces there

Update = Callable[[Sequence[Batch], Tensor], None]
"""Run forward pass, backward pass and optimizer on the micro-batches; the second argument divides the loss."""


@dataclasses.dataclass
class _CapturedStep:
    """A graph, and the tensors it reads its batch from, by dtype: (tensors, their places among the batch's tensors)."""

    graph: DeviceGraph
    inputs: list[tuple[list[Tensor], list[int]]]


class CapturedSteps:
    """Replays `update` for batches of the shapes that were captured.

    Values among a batch's inputs that are not tensors, such as a maximum length, belong to its shape.
    """

    def __init__(self, update: Update, optimizer: Optimizer, device: torch.device) -> None:
        self._update, self._optimizer, self._device = update, optimizer, device
        self._total_weight = torch.ones((), device=device)
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._current_rates = [0.0 for _ in optimizer.param_groups]
        self._steps: dict[Hashable, _CapturedStep] = {}

    def capture(self, micro_batches: Sequence[Batch]) -> None:
        """Capture a step of this shape. It updates the weights twice, so the caller restores them."""
        tensors, shape, spec, leaves = _flatten(micro_batches)
        if any(tensor.device != self._device for tensor in tensors):
            raise ValueError("A workload that is capturable must have all tensors of a batch on its device.")
        own = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        inputs = pytree.tree_unflatten(own, spec)
        batches = [dataclasses.replace(batch, inputs=part) for batch, part in zip(micro_batches, inputs, strict=True)]
        self._set_rates()
        with self._rates_on_device():
            graph = capture_graph(self._device, lambda: self._update(batches, self._total_weight), _EAGER_PASSES)
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[int]]] = defaultdict(lambda: ([], []))
        for place, tensor in enumerate(leaf for leaf in own if isinstance(leaf, Tensor)):
            group, places = by_dtype[tensor.dtype]
            group.append(tensor)
            places.append(place)
        self._steps[shape] = _CapturedStep(graph, list(by_dtype.values()))

    def replay(self, micro_batches: Sequence[Batch], total_weight: float | Tensor) -> bool:
        """Update the weights; return False, having done nothing, if no step of this shape was captured."""
        tensors, shape, *_ = _flatten(micro_batches)
        step = self._steps.get(shape)
        if step is None:
            return False
        for own, places in step.inputs:
            torch._foreach_copy_(own, [tensors[place] for place in places], non_blocking=True)
        self._total_weight.fill_(total_weight)
        self._set_rates()
        step.graph.replay()
        return True

    def _set_rates(self) -> None:
        for number, group in enumerate(self._optimizer.param_groups):
            if group["lr"] != self._current_rates[number]:
                self._rates[number].fill_(group["lr"])
                self._current_rates[number] = group["lr"]

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Let the optimizer read its learning rates from the device, where a graph finds those of later steps."""
        groups = self._optimizer.param_groups
        saved = [dict(group) for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        try:
            yield
        finally:
            for group, before in zip(groups, saved, strict=True):
                group.update(before)


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict()` into the tensors of an optimizer whose steps are captured.

    What the loaded state lacks becomes 0: it was saved before the first step, where PyTorch's fused optimizers start
    from 0.
    """
    for number, values in optimizer.state_dict()["state"].items():
        loaded = state["state"].get(number, {})
        for name, value in values.items():
            if isinstance(value, Tensor):
                value.copy_(loaded[name]) if name in loaded else value.zero_()
    for group, loaded_group in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in loaded_group.items() if key != "params"})


def _flatten(micro_batches: Sequence[Batch]) -> tuple[list[Tensor], Hashable, pytree.TreeSpec, list[Any]]:
    """Return the tensors of the inputs, their shape as a key, and the structure and leaves of the inputs."""
    leaves, spec = pytree.tree_flatten([batch.inputs for batch in micro_batches])
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    shape = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return tensors, (spec, shape), spec, leaves
