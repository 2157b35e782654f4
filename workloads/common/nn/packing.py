"""Sentences of unequal lengths without padding: where every piece lies, found on the device without waiting for it."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def uploaded(array: NDArray[Any], device: torch.device) -> Tensor:
    """`array` on the device, or on its way there from pinned memory: a plain copy would wait for all work before it."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def sentence_major(lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """(sentence, position) int64 [total] of pieces sentence after sentence; `lengths` int64 [N] add up to `total`."""
    numbers = torch.arange(len(lengths), device=lengths.device)
    sentence = torch.repeat_interleave(numbers, lengths, output_size=total)
    first = lengths.cumsum(0) - lengths
    return sentence, torch.arange(total, device=lengths.device) - first[sentence]


def time_major(lengths: Tensor, longest: int, total: int) -> tuple[Tensor, Tensor]:
    """(sentence, position) int64 [total] of pieces that lie position after position, as cuDNN packs sequences.

    `lengths` int64 [N] fall and sum to `total`; the first is `longest`.
    """
    alive = (lengths[None] > torch.arange(longest, device=lengths.device)[:, None]).sum(1)
    position, sentence = sentence_major(alive, total)
    return sentence, position
