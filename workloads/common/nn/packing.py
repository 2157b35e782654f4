"""Indices of packed sequences of unequal lengths, without padding and without waiting for the device."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def copy_to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy `array` to the device without blocking, through pinned memory; a plain copy would wait for earlier work."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def sentence_major_indices(lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return (sentence, position), int64 [total] each, of tokens packed sentence by sentence.

    `lengths` int64 [N] sum to `total`.
    """
    numbers = torch.arange(len(lengths), device=lengths.device)
    sentence = torch.repeat_interleave(numbers, lengths, output_size=total)
    first = lengths.cumsum(0) - lengths
    return sentence, torch.arange(total, device=lengths.device) - first[sentence]


def time_major_indices(lengths: Tensor, max_length: int, total: int) -> tuple[Tensor, Tensor]:
    """Return (sentence, position), int64 [total] each, of tokens packed time step by time step, as in PackedSequence.

    `lengths` int64 [N] descend from `max_length` and sum to `total`.
    """
    batch_sizes = (lengths[None] > torch.arange(max_length, device=lengths.device)[:, None]).sum(1)
    position, sentence = sentence_major_indices(batch_sizes, total)
    return sentence, position
