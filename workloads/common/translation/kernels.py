"""Triton kernel of the cross entropy over a large vocabulary. Every sum is kept in float32.

Shapes: T rows, V vocabulary.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

if triton is not None:

    @triton.jit
    def _cross_entropy(
        logits, labels, losses, vocab_size, target_weight, smoothing_weight, gradient_scale, BLOCK: tl.constexpr
    ):
        """One row per program: an online log-sum-exp over the vocabulary, then the gradient in place of the logits."""
        row = tl.program_id(0)
        row_logits = logits + row.to(tl.int64) * vocab_size
        label = tl.load(labels + row)
        running_max = tl.full((BLOCK,), float("-inf"), tl.float32)
        sum_exp = tl.zeros((BLOCK,), tl.float32)
        logit_sum = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            in_range = column < vocab_size
            z = tl.load(row_logits + column, mask=in_range, other=float("-inf")).to(tl.float32)
            new_max = tl.maximum(running_max, z)
            # Before the first finite logit both maxima are -inf, and their difference would be NaN.
            rescaled = sum_exp * tl.exp(running_max - new_max) + tl.exp(z - new_max)
            sum_exp = tl.where(z > float("-inf"), rescaled, sum_exp)
            running_max = new_max
            logit_sum += tl.where(in_range, z, 0.0)
        row_max = tl.max(running_max, 0)
        log_sum_exp = row_max + tl.log(tl.sum(sum_exp * tl.exp(running_max - row_max), 0))
        is_valid = label >= 0
        label_logit = tl.load(row_logits + label, mask=is_valid, other=0.0).to(tl.float32)
        loss = log_sum_exp - target_weight * label_logit - smoothing_weight * tl.sum(logit_sum, 0)
        tl.store(losses + row, tl.where(is_valid, loss, 0.0))
        scale = tl.where(is_valid, gradient_scale, 0.0)
        for start in range(0, vocab_size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            in_range = column < vocab_size
            z = tl.load(row_logits + column, mask=in_range, other=0.0).to(tl.float32)
            gradient = tl.exp(z - log_sum_exp) - smoothing_weight - tl.where(column == label, target_weight, 0.0)
            tl.store(row_logits + column, (gradient * scale).to(logits.dtype.element_ty), mask=in_range)


def cross_entropy_(
    logits: Tensor, labels: Tensor, target_weight: float, smoothing_weight: float, gradient_scale: float
) -> Tensor:
    """Return the smoothed cross entropy of each row, float32 [T], and overwrite `logits` with their gradients.

    The loss is log-sum-exp - `target_weight` * logit of the label - `smoothing_weight` * sum of all logits. It is 0
    where the label is negative. `logits` [T, V] must be contiguous; the gradients are multiplied by `gradient_scale`.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    vocab_size = logits.shape[1]
    block = 4096 if vocab_size >= 4096 else triton.next_power_of_2(vocab_size)
    weights = (target_weight, smoothing_weight, gradient_scale)
    _cross_entropy[(len(logits),)](logits, labels, losses, vocab_size, *weights, BLOCK=block, num_warps=8)
    return losses
