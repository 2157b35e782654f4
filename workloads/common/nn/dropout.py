"""Dropout that a compiler fuses: whether a value stays is a hash of its place, found again in the backward pass."""

import torch
from torch import Tensor
from torch.nn import functional as F


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """Zero for a random `share` of x's values, the others divided by 1 - `share`; x itself outside of training.

    Compiled, PyTorch's own spends ten rounds of Philox on each value, twice the time that its memory traffic takes, and
    keeps a mask of a byte a value.
    """
    if training and share and torch.compiler.is_compiling():
        return torch.where(_kept(x, share), x * (1 / (1 - share)), 0.0)
    return F.dropout(x, share, training)


def _kept(x: Tensor, share: float) -> Tensor:
    """Whether each value stays: places mixed with a key, twice (as Wellons' lowbias32), and a threshold for the sum."""
    keys = torch.randint(-(2**31), 2**31 - 1, (2,), dtype=torch.int32, device=x.device)
    bits = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    bits = bits ^ keys[0]
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * 0x7FEB352D
    bits = bits ^ keys[1]
    bits = (bits ^ (bits >> 15 & 0x1FFFF)) * -0x7B935975
    return bits >= int(share * 2**32) - 2**31
