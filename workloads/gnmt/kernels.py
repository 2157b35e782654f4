"""Triton kernels for the scores of additive attention, which never store the [N, Q, K, U] intermediate.

With E(x) = exp(2x), tanh(a + b) = 1 - 2 / (1 + E(a) E(b)). E is computed once per row, so the special-function units
only do one reciprocal square root per query, key and unit. Shapes: N sentences, Q queries, K keys, U units.
"""

import torch
from torch import Tensor

from ..common.nn.triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

__all__ = ["additive_scores", "triton_available"]

_FORWARD_QUERIES, _FORWARD_UNITS = 4, 1024  # tile of a program of the forward kernel
_BACKWARD_ROWS, _BACKWARD_UNITS = 8, 128  # tile of a program of the backward kernel

if triton is not None:

    @triton.jit
    def _load_exp2x(pointers, mask):
        """Load x and return exp(2x). |x| is clamped to 43: tanh is 1 there, and larger products would be 0 * inf."""
        x = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
        return tl.exp2(tl.minimum(tl.maximum(x, -43.0), 43.0) * 2.8853900817779268)

    @triton.jit
    def _reciprocal(x):
        """Return 1 / x for x > 0 within 2**-21, by two instructions; a division takes about eight."""
        root = tl.rsqrt(x)
        return root * root

    @triton.jit
    def _loop_length(own_lengths, other_lengths, sentence, first_row):
        """Return the tokens of the other side that a tile of rows from `first_row` on attends to: 0 past the end."""
        return tl.where(first_row < tl.load(own_lengths + sentence), tl.load(other_lengths + sentence), 0)

    @triton.jit
    def _scores(
        query, key, v, out, query_lengths, key_lengths, queries, keys, U, ROWS: tl.constexpr, UNITS: tl.constexpr
    ):
        """Scores of ROWS queries with all keys, summed over one chunk of UNITS units."""
        sentence, chunk = tl.program_id(0).to(tl.int64), tl.program_id(2)
        first = tl.program_id(1) * ROWS
        q = first + tl.arange(0, ROWS)
        unit = chunk * UNITS + tl.arange(0, UNITS)
        row_mask, unit_mask = q < queries, unit < U
        weight = tl.load(v + unit, mask=unit_mask, other=0.0).to(tl.float32)
        weight_sum = tl.sum(weight, 0)
        mask = row_mask[:, None] & unit_mask[None]
        a = _load_exp2x(query + (sentence * queries + q[:, None]) * U + unit[None], mask)
        out_row = out + ((chunk * tl.num_programs(0) + sentence) * queries + q) * keys
        for k in range(0, _loop_length(query_lengths, key_lengths, sentence, first)):
            b = _load_exp2x(key + (sentence * keys + k) * U + unit, unit_mask)
            part = tl.sum(weight[None] * _reciprocal(1.0 + a * b[None]), 1)
            tl.store(out_row + k, weight_sum - 2.0 * part, mask=row_mask)

    @triton.jit
    def _scores_backward(
        own, other, v, grad, grad_own, v_parts, own_lengths, other_lengths, rows, others, row_stride, other_stride, U,
        WITH_V: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    ):  # fmt: skip
        """Gradient of one side; with WITH_V also this program's sum of grad / (1 + E(a) E(b)) for v's gradient."""
        sentence = tl.program_id(0).to(tl.int64)
        first = tl.program_id(1) * ROWS
        row = first + tl.arange(0, ROWS)
        unit = tl.program_id(2) * UNITS + tl.arange(0, UNITS)
        row_mask, unit_mask = row < rows, unit < U
        mask = row_mask[:, None] & unit_mask[None]
        own_offset = (sentence * rows + row[:, None]) * U + unit[None]
        a = _load_exp2x(own + own_offset, mask)
        slope_sum = tl.zeros((ROWS, UNITS), tl.float32)
        quotient_sum = tl.zeros((ROWS, UNITS), tl.float32)
        grad_row = grad + sentence * rows * others + row * row_stride
        for index in range(0, _loop_length(own_lengths, other_lengths, sentence, first)):
            b = _load_exp2x(other + (sentence * others + index) * U + unit, unit_mask)
            score_grad = tl.load(grad_row + index * other_stride, mask=row_mask, other=0.0)[:, None]
            quotient = _reciprocal(1.0 + a * b[None])
            slope_sum += score_grad * (quotient - quotient * quotient)
            if WITH_V:
                quotient_sum += score_grad * quotient
        weight = tl.load(v + unit, mask=unit_mask, other=0.0).to(tl.float32)
        tl.store(grad_own + own_offset, (4.0 * weight[None] * slope_sum).to(grad_own.dtype.element_ty), mask=mask)
        if WITH_V:
            program = sentence * tl.num_programs(1) + tl.program_id(1)
            tl.store(v_parts + program * U + unit, tl.sum(quotient_sum, 0), mask=unit_mask)


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, v, query_lengths, key_lengths):
        query, key, v = query.contiguous(), key.contiguous(), v.contiguous()
        (count, queries, units), keys = query.shape, key.shape[1]
        chunk = min(_FORWARD_UNITS, triton.next_power_of_2(units))
        grid = (count, triton.cdiv(queries, _FORWARD_QUERIES), triton.cdiv(units, chunk))
        out = torch.zeros(grid[2], count, queries, keys, dtype=torch.float32, device=query.device)
        lengths = (query_lengths, key_lengths)
        _scores[grid](query, key, v, out, *lengths, queries, keys, units, _FORWARD_QUERIES, chunk, num_warps=2)
        ctx.save_for_backward(query, key, v, *lengths)
        return out.sum(0)

    @staticmethod
    def backward(ctx, grad):
        query, key, v, query_lengths, key_lengths = ctx.saved_tensors
        grad = grad.contiguous()
        (count, queries, units), keys = query.shape, key.shape[1]
        grad_query, grad_key = torch.empty_like(query), torch.empty_like(key)
        chunk = min(_BACKWARD_UNITS, triton.next_power_of_2(units))
        tiles = triton.cdiv(queries, _BACKWARD_ROWS), triton.cdiv(keys, _BACKWARD_ROWS)
        v_parts = torch.empty(count, tiles[0], units, dtype=torch.float32, device=query.device)
        for side, inputs, out, sizes in (
            (0, (query, key), grad_query, (query_lengths, key_lengths, queries, keys, keys, 1)),
            (1, (key, query), grad_key, (key_lengths, query_lengths, keys, queries, 1, keys)),
        ):
            grid = (count, tiles[side], triton.cdiv(units, chunk))
            constants = (not side, _BACKWARD_ROWS, chunk)
            _scores_backward[grid](*inputs, v, grad, out, v_parts, *sizes, units, *constants, num_warps=1)
        return grad_query, grad_key, (grad.sum() - 2 * v_parts.sum((0, 1))).to(v.dtype), None, None


def additive_scores(query: Tensor, key: Tensor, v: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
    """Return sum_u v[u] tanh(query[n, q, u] + key[n, k, u]): float32 [N, Q, K].

    Scores beyond a sentence's `query_lengths` and `key_lengths`, int64 [N] each, are arbitrary finite values; their
    incoming gradients must be 0.
    """
    return _AdditiveScores.apply(query, key, v, query_lengths, key_lengths)
