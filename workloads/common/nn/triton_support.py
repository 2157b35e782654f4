"""Triton kernels of the workloads on text, for any vendor that Triton serves. Every sum is kept in fp32."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None


def available(tensor: Tensor) -> bool:
    """Whether Triton kernels run where the tensor is, on numbers of its type."""
    return triton is not None and tensor.device.type != "cpu" and tensor.dtype != torch.float64


if triton is not None:

    @triton.jit
    def _cross_entropy(logits, labels, losses, words, lead, spread, factor, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        place = logits + row.to(tl.int64) * words
        label = tl.load(labels + row)
        most = tl.full((BLOCK,), float("-inf"), tl.float32)
        mass = tl.zeros((BLOCK,), tl.float32)
        plain = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, words, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < words
            z = tl.load(place + column, mask=inside, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(most, z)
            # Where nothing has been seen yet, both are minus infinity, and their difference is no number.
            mass = tl.where(z > float("-inf"), mass * tl.exp(most - higher) + tl.exp(z - higher), mass)
            most = higher
            plain += tl.where(inside, z, 0.0)
        top = tl.max(most, 0)
        log_mass = top + tl.log(tl.sum(mass * tl.exp(most - top), 0))
        counts = label >= 0
        said = tl.load(place + label, mask=counts, other=0.0).to(tl.float32)
        loss = log_mass - lead * said - spread * tl.sum(plain, 0)
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        scale = tl.where(counts, factor, 0.0)
        for start in range(0, words, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < words
            z = tl.load(place + column, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.exp(z - log_mass) - spread - tl.where(column == label, lead, 0.0)
            tl.store(place + column, (gradient * scale).to(logits.dtype.element_ty), mask=inside)


def cross_entropy_(logits: Tensor, labels: Tensor, lead: float, spread: float, factor: float) -> Tensor:
    """float32 [T]: log-sum-exp - lead * logit of the label - spread * sum of all logits; 0 where the label is below 0.

    `logits` [T, V], contiguous, become their own gradients, times `factor`.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    words = logits.shape[1]
    block = 4096 if words >= 4096 else triton.next_power_of_2(words)
    _cross_entropy[(len(logits),)](logits, labels, losses, words, lead, spread, factor, BLOCK=block, num_warps=8)
    return losses
