"""Replay training steps from the same state: on a device that computes right, every bit of the weights is the same."""

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ...training.torch_engine import TorchEngine
from ...training.workload import Batch
from .figures import Difference, Replay

MIN_REPEATS = 3
FLIP_VARIABLE = "TIMETRIAL_ACCEPT_FLIP"
"""For tests: REPEAT/STEP/TENSOR of which one bit is flipped before it is compared."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

AfterStep = Callable[[int, int, nn.Module], None]
"""Called with the 1-based repeat and step, and the model, before its weights are compared."""
Trace = Sequence[Mapping[str, int]]


def replay(
    name: str, engine: TorchEngine, batches: Sequence[Sequence[Batch]], deadline: float, after_step: AfterStep
) -> Replay:
    """Train on `batches` from the present state until `deadline` (wall time) and at least `MIN_REPEATS` times.

    Ends at the first difference.
    """
    initial = copy.deepcopy(engine.state_dict())
    first: Trace = ()
    repeat, difference = 0, None
    while difference is None and (repeat < MIN_REPEATS or time.time() < deadline):
        repeat += 1
        engine.load_state_dict(initial)
        trace = []
        for step, micro_batches in enumerate(batches, start=1):
            engine.train_step(micro_batches)
            after_step(repeat, step, engine.model)
            trace.append(checksums(engine.model))
        engine.synchronize()
        first = first or trace
        difference = first_difference(first, trace, repeat)
    return Replay(name, len(batches[0]), repeat, tuple(map(dict, first)), difference)


def checksums(model: nn.Module) -> dict[str, int]:
    """Return a checksum of the bits of each tensor of the model, by name."""
    tensors = model.state_dict()
    return dict(zip(tensors, torch.stack(list(map(_checksum, tensors.values()))).tolist(), strict=True))


def _checksum(tensor: Tensor) -> Tensor:
    """Return the sum of the elements' bits as integers, each times an odd number of its own, modulo 2^64.

    An odd factor keeps each single bit: a flip changes the sum by an odd multiple of a power of 2 below 2^64. Integers
    add up to the same sum in any order, so that devices agree.
    """
    flat = tensor.detach().reshape(-1)
    bits = flat.view(_INTEGERS[flat.element_size()]).to(torch.int64)
    factors = torch.arange(len(bits), dtype=torch.int64, device=bits.device).mul_(2).add_(1)
    return factors.mul_(bits).sum()


def first_difference(expected: Trace, other: Trace, repeat: int) -> Difference | None:
    """Return the earliest step with a tensor of another checksum, and the first such tensor; None without any."""
    for step, (before, after) in enumerate(zip(expected, other, strict=True), start=1):
        for tensor, value in before.items():
            if after.get(tensor) != value:
                return Difference(repeat, step, tensor)
    return None


def flip_requested_bit(repeat: int, step: int, model: nn.Module) -> None:
    """Flip the lowest bit of a weight where `FLIP_VARIABLE` asks for it and the model has it."""
    *when, name = os.environ.get(FLIP_VARIABLE, "").split("/", 2)
    if when == [str(repeat), str(step)] and name in model.state_dict():
        flip_bit(model.state_dict()[name])


def flip_bit(tensor: Tensor) -> None:
    """Flip the lowest bit of the first element, in place."""
    flat = tensor.detach().view(-1)
    flat.view(_INTEGERS[flat.element_size()])[0] ^= 1
