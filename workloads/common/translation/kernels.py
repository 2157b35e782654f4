"""Triton kernels over a large vocabulary: the cross entropy, and the most probable words. Sums are kept in float32.

Shapes: T or R rows, V vocabulary, W words.
"""

import torch
from torch import Tensor

from ..nn.triton_support import tl, triton

_BLOCK, _WARPS = 2048, 16  # logits and warps of a program, at a time
_SEARCH_BLOCK, _SEARCH_WARPS = 4096, 8  # the same in the search for words


def cross_entropy_(
    logits: Tensor, labels: Tensor, target_weight: float, smoothing_weight: float, gradient_scale: float
) -> Tensor:
    """Return the smoothed cross entropy of each row, float32 [T], and overwrite `logits` with their gradients.

    With a label y, `target_weight` a and `smoothing_weight` b, loss = lse(z) - a z_y - b sum_v z_v for logits z, and
    dz_v = softmax(z)_v - b - a [v = y] (label smoothing: Szegedy et al. 2015, arXiv:1512.00567, section 7). Both are 0
    where `labels`, int64 [T], are negative. `logits` [T, V], float32, float16 or bfloat16, must be contiguous; the
    gradients are multiplied by `gradient_scale`.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    vocab_size = logits.shape[1]
    _cross_entropy[(len(logits),)](
        logits_ptr=logits,
        labels_ptr=labels,
        losses_ptr=losses,
        vocab_size=vocab_size,
        target_weight=target_weight,
        smoothing_weight=smoothing_weight,
        gradient_scale=gradient_scale,
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocab_size)),
        num_warps=_WARPS,
    )
    return losses


@triton.jit
def _cross_entropy(
    logits_ptr, labels_ptr, losses_ptr, vocab_size, target_weight, smoothing_weight, gradient_scale,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program: an online log-sum-exp over the vocabulary, then the gradient in place of the logits.

    Four blocks are loaded before the first is used. The gradient starts at the end, which is still in the cache.
    """
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * vocab_size
    label = tl.load(labels_ptr + row)
    running_max = tl.full((BLOCK,), float("-inf"), tl.float32)
    sum_exp = tl.zeros((BLOCK,), tl.float32)
    logit_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, 4 * BLOCK):
        a_column = start + tl.arange(0, BLOCK)
        b_column, c_column, d_column = a_column + BLOCK, a_column + 2 * BLOCK, a_column + 3 * BLOCK
        a, b = _load(row_ptr, a_column, vocab_size), _load(row_ptr, b_column, vocab_size)
        c, d = _load(row_ptr, c_column, vocab_size), _load(row_ptr, d_column, vocab_size)
        new_max = tl.maximum(running_max, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)))
        origin = tl.where(new_max > float("-inf"), new_max, 0.0)  # -inf minus itself would be NaN
        sum_exp = sum_exp * tl.exp(running_max - origin) + tl.exp(a - origin) + tl.exp(b - origin)
        sum_exp += tl.exp(c - origin) + tl.exp(d - origin)
        running_max = new_max
        if smoothing_weight != 0.0:
            logit_sum += _or_zero(a, a_column, vocab_size) + _or_zero(b, b_column, vocab_size)
            logit_sum += _or_zero(c, c_column, vocab_size) + _or_zero(d, d_column, vocab_size)
    row_max = tl.max(running_max, 0)
    lse = row_max + tl.log(tl.sum(sum_exp * tl.exp(running_max - row_max), 0))
    is_valid = label >= 0
    label_logit = tl.load(row_ptr + label, mask=is_valid, other=0.0).to(tl.float32)
    loss = lse - target_weight * label_logit - smoothing_weight * tl.sum(logit_sum, 0)
    tl.store(losses_ptr + row, tl.where(is_valid, loss, 0.0))
    scale = tl.where(is_valid, gradient_scale, 0.0)
    for end in range(tl.cdiv(vocab_size, BLOCK) * BLOCK, 0, -BLOCK):
        column = end - BLOCK + tl.arange(0, BLOCK)
        z = _load(row_ptr, column, vocab_size)
        dz = tl.exp(z - lse) - smoothing_weight - tl.where(column == label, target_weight, 0.0)
        tl.store(row_ptr + column, (dz * scale).to(logits_ptr.dtype.element_ty), mask=column < vocab_size)


def top_words(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the log probabilities, float32 [R, W], and ids, int64 [R, W], of the `count` best words by falling logit.

    `logits` [R, V], float32, float16 or bfloat16, must be contiguous and are read once. Of equal logits the lower id
    comes first.
    """
    rows, vocab_size = logits.shape
    log_probabilities = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    _top_words[(rows,)](
        logits_ptr=logits,
        log_probabilities_ptr=log_probabilities,
        ids_ptr=ids,
        vocab_size=vocab_size,
        count=count,
        WORDS=triton.next_power_of_2(count),
        BLOCK=min(_SEARCH_BLOCK, triton.next_power_of_2(vocab_size)),
        num_warps=_SEARCH_WARPS,
    )
    return log_probabilities, ids


@triton.jit
def _top_words(
    logits_ptr, log_probabilities_ptr, ids_ptr, vocab_size, count, WORDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row per program: an online log-sum-exp, and the best words so far; a better one replaces the worst."""
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * vocab_size
    slot = tl.arange(0, WORDS)
    best = tl.where(slot < count, float("-inf"), float("inf"))  # slots beyond the count are never the worst
    best_id = tl.zeros((WORDS,), tl.int32)
    row_max, sum_exp = float("-inf"), 0.0
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = _load(row_ptr, column, vocab_size)
        highest = tl.max(z, 0)
        new_max = tl.maximum(row_max, highest)
        origin = tl.where(new_max > float("-inf"), new_max, 0.0)  # -inf minus itself would be NaN
        sum_exp = sum_exp * tl.exp(row_max - origin) + tl.sum(tl.exp(z - origin), 0)
        row_max = new_max
        worst = tl.min(best, 0)
        while highest > worst:
            found = tl.min(tl.where(z == highest, column, vocab_size), 0)
            replaced = tl.min(tl.where(best == worst, slot, WORDS), 0)
            best = tl.where(slot == replaced, highest, best)
            best_id = tl.where(slot == replaced, found, best_id)
            z = tl.where(column == found, float("-inf"), z)
            highest, worst = tl.max(z, 0), tl.min(best, 0)
    lse = row_max + tl.log(sum_exp)
    best = tl.where(slot < count, best, float("-inf"))
    for place in range(count):
        highest = tl.max(best, 0)
        index = tl.min(tl.where(best == highest, best_id, vocab_size), 0)
        target = row.to(tl.int64) * count + place
        tl.store(log_probabilities_ptr + target, highest - lse)
        tl.store(ids_ptr + target, index.to(tl.int64))
        best = tl.where((best == highest) & (best_id == index), float("-inf"), best)


@triton.jit
def _load(row_ptr, column, vocab_size):
    return tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def _or_zero(z, column, vocab_size):
    return tl.where(column < vocab_size, z, 0.0)
