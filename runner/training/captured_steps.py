"""Training steps captured in device graphs, one for each shape of batch, and replayed without Python.

A graph reads its batch, the learning rates and the loss weight from tensors of its own, and writes weights and
optimizer state where they were when it was captured. Those tensors must therefore never be replaced:
`load_optimizer_state` overwrites them.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core import execution_paths
from ..hardware.device_graphs import DeviceGraph, StaticInputs, capture_graph, flatten_inputs
from .workload import Batch

_EAGER_PASSES = 2  # on the stream of the capture: kernels choose their workspaces there

Update = Callable[[Sequence[Batch], Tensor], None]
"""Run forward pass, backward pass and optimizer on the micro-batches; the second argument divides the loss."""


@dataclasses.dataclass
class _CapturedStep:
    """A graph, and the inputs of the micro-batches that it reads."""

    graph: DeviceGraph
    inputs: StaticInputs


class CapturedSteps:
    """Replays the update of the weights for batches of the shapes that were captured.

    Values among a batch's inputs that are not tensors, such as a maximum length, belong to its shape.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._total_weight = torch.ones((), device=device)
        self._current_weight: float | None = 1.0  # None: that of a tensor
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._current_rates = [0.0 for _ in optimizer.param_groups]
        self._steps: dict[Hashable, _CapturedStep] = {}

    def capture(self, update: Update, micro_batches: Sequence[Batch]) -> None:
        """Capture a step of this shape. It updates the weights twice, so the caller restores them."""
        values = [batch.inputs for batch in micro_batches]
        key, tensors = flatten_inputs(values)
        if any(tensor.device != self._device for tensor in tensors):
            raise ValueError("A workload that is capturable must have all tensors of a batch on its device.")
        inputs = StaticInputs(values)
        batches = [
            dataclasses.replace(batch, inputs=own) for batch, own in zip(micro_batches, inputs.values, strict=True)
        ]
        self._set_rates()
        with self._rates_on_device():
            graph = capture_graph(self._device, lambda: update(batches, self._total_weight), _EAGER_PASSES)
        self._steps[key] = _CapturedStep(graph, inputs)

    def replay(self, micro_batches: Sequence[Batch], total_weight: float | Tensor) -> bool:
        """Update the weights; return False, having done nothing, if no step of this shape was captured."""
        key, tensors = flatten_inputs([batch.inputs for batch in micro_batches])
        step = self._steps.get(key)
        if step is None:
            return False
        step.inputs.copy_from(tensors)
        self._set_weight(total_weight)
        self._set_rates()
        step.graph.replay()
        execution_paths.take("steps", "captured")
        return True

    def _set_weight(self, total_weight: float | Tensor) -> None:
        known = None if isinstance(total_weight, Tensor) else total_weight
        if known is None or known != self._current_weight:
            self._total_weight.fill_(total_weight)
            self._current_weight = known

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
