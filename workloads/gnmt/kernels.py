"""Triton kernels for the scores of additive attention, which never store the [N, Q, K, U] intermediate.

With E(x) = exp(2x), tanh(a + b) = 1 - 2 / (1 + E(a) E(b)). E is computed once per row, so the special-function units
only do one reciprocal square root per query, key and unit. Shapes: N sentences, Q queries, K keys, U units.
"""

from typing import Any

import torch
from torch import Tensor

from ..common.nn.triton_support import tl, triton

_FORWARD_QUERIES, _FORWARD_UNITS = 4, 1024  # tile of a program of the forward kernel
_BACKWARD_ROWS, _BACKWARD_UNITS = 8, 128  # tile of a program of the backward kernel


def additive_scores(query: Tensor, key: Tensor, v: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
    """Return sum_u v[u] tanh(query[n, q, u] + key[n, k, u]): float32 [N, Q, K].

    `query` [N, Q, U], `key` [N, K, U] and `v` [U] are float32, float16 or bfloat16, the first two of one dtype. Scores
    beyond a sentence's `query_lengths` and `key_lengths`, int64 [N] each, are arbitrary finite values; their incoming
    gradients must be 0.
    """
    return _AdditiveScores.apply(query, key, v, query_lengths, key_lengths)


class _AdditiveScores(torch.autograd.Function):
    """s_nqk = sum_u v_u tanh(query_nqu + key_nku) (Bahdanau et al. 2014, arXiv:1409.0473, appendix A.1.2).

    With r = 1 / (1 + E(query) E(key)), the slope of tanh is 4 (r - r^2); dv_u = sum_nqk ds_nqk (1 - 2 r_nqku).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        query, key, v = query.contiguous(), key.contiguous(), v.contiguous()
        (count, queries, units), keys = query.shape, key.shape[1]
        chunk = min(_FORWARD_UNITS, triton.next_power_of_2(units))
        grid = (count, triton.cdiv(queries, _FORWARD_QUERIES), triton.cdiv(units, chunk))
        scores = torch.zeros(grid[2], count, queries, keys, dtype=torch.float32, device=query.device)
        _scores_forward[grid](
            query_ptr=query,
            key_ptr=key,
            v_ptr=v,
            scores_ptr=scores,
            query_lengths_ptr=query_lengths,
            key_lengths_ptr=key_lengths,
            num_queries=queries,
            num_keys=keys,
            num_units=units,
            BLOCK_Q=_FORWARD_QUERIES,
            BLOCK_U=chunk,
            num_warps=2,
        )
        ctx.save_for_backward(query, key, v, query_lengths, key_lengths)
        return scores.sum(0)

    @staticmethod
    def backward(ctx: Any, dscores: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, v, query_lengths, key_lengths = ctx.saved_tensors
        dscores = dscores.contiguous()
        (count, queries, units), keys = query.shape, key.shape[1]
        dquery, dkey = torch.empty_like(query), torch.empty_like(key)
        query_tiles, key_tiles = triton.cdiv(queries, _BACKWARD_ROWS), triton.cdiv(keys, _BACKWARD_ROWS)
        dv_parts = torch.empty(count, query_tiles, units, dtype=torch.float32, device=query.device)
        chunk = min(_BACKWARD_UNITS, triton.next_power_of_2(units))
        shared = {
            "v_ptr": v,
            "dscores_ptr": dscores,
            "dv_parts_ptr": dv_parts,
            "num_units": units,
            "BLOCK_X": _BACKWARD_ROWS,
            "BLOCK_U": chunk,
            "num_warps": 1,
        }
        _scores_backward[(count, query_tiles, triton.cdiv(units, chunk))](
            x_ptr=query,
            other_ptr=key,
            dx_ptr=dquery,
            x_lengths_ptr=query_lengths,
            other_lengths_ptr=key_lengths,
            num_rows=queries,
            num_others=keys,
            dscores_row_stride=keys,
            dscores_other_stride=1,
            HAS_DV=True,
            **shared,
        )
        _scores_backward[(count, key_tiles, triton.cdiv(units, chunk))](
            x_ptr=key,
            other_ptr=query,
            dx_ptr=dkey,
            x_lengths_ptr=key_lengths,
            other_lengths_ptr=query_lengths,
            num_rows=keys,
            num_others=queries,
            dscores_row_stride=1,
            dscores_other_stride=keys,
            HAS_DV=False,
            **shared,
        )
        return dquery, dkey, (dscores.sum() - 2 * dv_parts.sum((0, 1))).to(v.dtype), None, None


@triton.jit
def _scores_forward(
    query_ptr, key_ptr, v_ptr, scores_ptr, query_lengths_ptr, key_lengths_ptr, num_queries, num_keys, num_units,
    BLOCK_Q: tl.constexpr, BLOCK_U: tl.constexpr,
):  # fmt: skip
    """Scores of BLOCK_Q queries with all keys, summed over one chunk of BLOCK_U units."""
    sentence, chunk = tl.program_id(0).to(tl.int64), tl.program_id(2)
    first = tl.program_id(1) * BLOCK_Q
    q = first + tl.arange(0, BLOCK_Q)
    unit = chunk * BLOCK_U + tl.arange(0, BLOCK_U)
    row_mask, unit_mask = q < num_queries, unit < num_units
    v = tl.load(v_ptr + unit, mask=unit_mask, other=0.0).to(tl.float32)
    v_sum = tl.sum(v, 0)
    mask = row_mask[:, None] & unit_mask[None]
    a = _load_exp2x(query_ptr + (sentence * num_queries + q[:, None]) * num_units + unit[None], mask)
    scores_row_ptr = scores_ptr + ((chunk * tl.num_programs(0) + sentence) * num_queries + q) * num_keys
    for k in range(0, _loop_length(query_lengths_ptr, key_lengths_ptr, sentence, first)):
        b = _load_exp2x(key_ptr + (sentence * num_keys + k) * num_units + unit, unit_mask)
        part = tl.sum(v[None] * _reciprocal(1.0 + a * b[None]), 1)
        tl.store(scores_row_ptr + k, v_sum - 2.0 * part, mask=row_mask)


@triton.jit
def _scores_backward(
    x_ptr, other_ptr, v_ptr, dscores_ptr, dx_ptr, dv_parts_ptr, x_lengths_ptr, other_lengths_ptr, num_rows, num_others,
    dscores_row_stride, dscores_other_stride, num_units,
    HAS_DV: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_U: tl.constexpr,
):  # fmt: skip
    """Gradient of one side x, queries or keys, of BLOCK_X rows and BLOCK_U units.

    HAS_DV: also this program's sum of dscores / (1 + E(a) E(b)), for the gradient of v.
    """
    sentence = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK_X
    row = first + tl.arange(0, BLOCK_X)
    unit = tl.program_id(2) * BLOCK_U + tl.arange(0, BLOCK_U)
    row_mask, unit_mask = row < num_rows, unit < num_units
    mask = row_mask[:, None] & unit_mask[None]
    x_offset = (sentence * num_rows + row[:, None]) * num_units + unit[None]
    a = _load_exp2x(x_ptr + x_offset, mask)
    slope_sum = tl.zeros((BLOCK_X, BLOCK_U), tl.float32)
    quotient_sum = tl.zeros((BLOCK_X, BLOCK_U), tl.float32)
    dscores_row_ptr = dscores_ptr + sentence * num_rows * num_others + row.to(tl.int64) * dscores_row_stride
    for index in range(0, _loop_length(x_lengths_ptr, other_lengths_ptr, sentence, first)):
        b = _load_exp2x(other_ptr + (sentence * num_others + index) * num_units + unit, unit_mask)
        dscores_offset = tl.cast(index, tl.int64) * dscores_other_stride
        dscore = tl.load(dscores_row_ptr + dscores_offset, mask=row_mask, other=0.0)[:, None]
        quotient = _reciprocal(1.0 + a * b[None])
        slope_sum += dscore * (quotient - quotient * quotient)
        if HAS_DV:
            quotient_sum += dscore * quotient
    v = tl.load(v_ptr + unit, mask=unit_mask, other=0.0).to(tl.float32)
    tl.store(dx_ptr + x_offset, (4.0 * v[None] * slope_sum).to(dx_ptr.dtype.element_ty), mask=mask)
    if HAS_DV:
        program = sentence * tl.num_programs(1) + tl.program_id(1)
        tl.store(dv_parts_ptr + program * num_units + unit, tl.sum(quotient_sum, 0), mask=unit_mask)


@triton.jit
def _loop_length(x_lengths_ptr, other_lengths_ptr, sentence, first_row):
    """Return the tokens of the other side that a tile of rows from `first_row` on attends to: 0 past the end."""
    return tl.where(first_row < tl.load(x_lengths_ptr + sentence), tl.load(other_lengths_ptr + sentence), 0)


@triton.jit
def _load_exp2x(ptrs, mask):
    """Load x and return exp(2x). |x| is clamped to 43: tanh is 1 there, and larger products would be 0 * inf."""
    x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    return tl.exp2(tl.minimum(tl.maximum(x, -43.0), 43.0) * 2.8853900817779268)


@triton.jit
def _reciprocal(x):
    """Return 1 / x for x > 0 within 2**-21, by two instructions; a division takes about eight."""
    root = tl.rsqrt(x)
    return root * root
