"""Dropout that a compiler can fuse: the mask is a hash of each element's index, recomputed in the backward pass."""

import torch
from torch import Tensor
from torch.nn import functional as F


def dropout(x: Tensor, p: float, training: bool, *, stock_random: bool) -> Tensor:
    """Zero each element of x with probability `p` and scale the others by 1 / (1 - p); return x if not `training`.

    MLPerf's closed division allows stock generators only; `stock_random` is PyTorch's own dropout. When compiled, that
    runs ten rounds of Philox for each element, which takes twice as long as its memory traffic, and stores a mask of
    one byte per element. The hash has 32 bits: tensors of 2^31 elements or more take PyTorch's dropout.
    """
    if training and p and not stock_random and torch.compiler.is_compiling() and x.numel() < 2**31:
        return torch.where(_keep_mask(x, p), x * (1 / (1 - p)), 0.0)
    return F.dropout(x, p, training)


def _keep_mask(x: Tensor, p: float) -> Tensor:
    """Return which elements are kept: the index is mixed with two random keys (Wellons' lowbias32) and compared.

    The odd key makes the difference of two indices a random number; without it, rows are correlated.
    """
    keys = torch.randint(-(2**31), 2**31 - 1, (2,), dtype=torch.int32, device=x.device)
    bits = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    bits = bits * (keys[0] | 1) ^ keys[1]
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15 & 0x1FFFF)) * -0x7B935975
    return bits >= int(p * 2**32) - 2**31
