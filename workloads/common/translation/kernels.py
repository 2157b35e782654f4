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

_BLOCK, _WARPS = 2048, 16  # logits and warps of a program, at a time

if triton is not None:

    @triton.jit
    def _load(row_logits, column, vocab_size):
        return tl.load(row_logits + column, mask=column < vocab_size, other=float("-inf")).to(tl.float32)

    @triton.jit
    def _or_zero(z, column, vocab_size):
        return tl.where(column < vocab_size, z, 0.0)

    @triton.jit
    def _cross_entropy(
        logits, labels, losses, vocab_size, target_weight, smoothing_weight, gradient_scale, BLOCK: tl.constexpr
    ):
        """One row per program: an online log-sum-exp over the vocabulary, then the gradient in place of the logits.

        Four blocks are loaded before the first is used. The gradient starts at the end, which is still in the cache.
        """
        row = tl.program_id(0)
        row_logits = logits + row.to(tl.int64) * vocab_size
        label = tl.load(labels + row)
        running_max = tl.full((BLOCK,), float("-inf"), tl.float32)
        sum_exp = tl.zeros((BLOCK,), tl.float32)
        logit_sum = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab_size, 4 * BLOCK):
            a_column = start + tl.arange(0, BLOCK)
            b_column, c_column, d_column = a_column + BLOCK, a_column + 2 * BLOCK, a_column + 3 * BLOCK
            a, b = _load(row_logits, a_column, vocab_size), _load(row_logits, b_column, vocab_size)
            c, d = _load(row_logits, c_column, vocab_size), _load(row_logits, d_column, vocab_size)
            new_max = tl.maximum(running_max, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)))
            origin = tl.where(new_max > float("-inf"), new_max, 0.0)  # -inf minus itself would be NaN
            sum_exp = sum_exp * tl.exp(running_max - origin) + tl.exp(a - origin) + tl.exp(b - origin)
            sum_exp += tl.exp(c - origin) + tl.exp(d - origin)
            running_max = new_max
            if smoothing_weight != 0.0:
                logit_sum += _or_zero(a, a_column, vocab_size) + _or_zero(b, b_column, vocab_size)
                logit_sum += _or_zero(c, c_column, vocab_size) + _or_zero(d, d_column, vocab_size)
        row_max = tl.max(running_max, 0)
        log_sum_exp = row_max + tl.log(tl.sum(sum_exp * tl.exp(running_max - row_max), 0))
        is_valid = label >= 0
        label_logit = tl.load(row_logits + label, mask=is_valid, other=0.0).to(tl.float32)
        loss = log_sum_exp - target_weight * label_logit - smoothing_weight * tl.sum(logit_sum, 0)
        tl.store(losses + row, tl.where(is_valid, loss, 0.0))
        scale = tl.where(is_valid, gradient_scale, 0.0)
        for end in range(tl.cdiv(vocab_size, BLOCK) * BLOCK, 0, -BLOCK):
            column = end - BLOCK + tl.arange(0, BLOCK)
            z = _load(row_logits, column, vocab_size)
            gradient = tl.exp(z - log_sum_exp) - smoothing_weight - tl.where(column == label, target_weight, 0.0)
            tl.store(row_logits + column, (gradient * scale).to(logits.dtype.element_ty), mask=column < vocab_size)


def cross_entropy_(
    logits: Tensor, labels: Tensor, target_weight: float, smoothing_weight: float, gradient_scale: float
) -> Tensor:
    """Return the smoothed cross entropy of each row, float32 [T], and overwrite `logits` with their gradients.

    The loss is log-sum-exp - `target_weight` * logit of the label - `smoothing_weight` * sum of all logits. It is 0
    where the label is negative. `logits` [T, V] must be contiguous; the gradients are multiplied by `gradient_scale`.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    vocab_size = logits.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(vocab_size))
    weights = (target_weight, smoothing_weight, gradient_scale)
    _cross_entropy[(len(logits),)](logits, labels, losses, vocab_size, *weights, BLOCK=block, num_warps=_WARPS)
    return losses
