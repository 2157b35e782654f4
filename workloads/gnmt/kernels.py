"""Scores of additive attention in one pass, forward and back: the sum over units is never kept apart by unit.

With E(x) = exp(2x), tanh(a + b) is 1 - 2 / (1 + E(a) E(b)): one division for each query, key and unit is all that
the special-function units have to do, since E is found once for each row. Shapes: N sentences, Q queries, K keys,
U units.
"""

import torch
from torch import Tensor

from ..common.nn.triton_support import available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

__all__ = ["additive_scores", "available"]

_QUERIES, _UNITS = 4, 1024  # that a program of the forward pass holds
_ROWS, _ROW_UNITS = 8, 128  # that a program of the backward pass holds

if triton is not None:

    @triton.jit
    def _raised(at, mask):
        """exp(2x) of what lies there; beyond 43 two of them would multiply 0 by infinity, and tanh is 1 by then."""
        x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        return tl.exp2(tl.minimum(tl.maximum(x, -43.0), 43.0) * 2.8853900817779268)

    @triton.jit
    def _reach(own_lengths, other_lengths, sentence, first):
        """How many pieces of the other side a tile that begins at `first` meets."""
        return tl.where(first < tl.load(own_lengths + sentence), tl.load(other_lengths + sentence), 0)

    @triton.jit
    def _scores(
        query, key, v, out, query_lengths, key_lengths, queries, keys, U, ROWS: tl.constexpr, UNITS: tl.constexpr
    ):
        sentence, chunk = tl.program_id(0).to(tl.int64), tl.program_id(2)
        first = tl.program_id(1) * ROWS
        q = first + tl.arange(0, ROWS)
        unit = chunk * UNITS + tl.arange(0, UNITS)
        some, inside = q < queries, unit < U
        weight = tl.load(v + unit, mask=inside, other=0.0).to(tl.float32)
        everything = tl.sum(weight, 0)
        a = _raised(query + (sentence * queries + q[:, None]) * U + unit[None], some[:, None] & inside[None])
        place = out + ((chunk * tl.num_programs(0) + sentence) * queries + q) * keys
        for k in range(0, _reach(query_lengths, key_lengths, sentence, first)):
            b = _raised(key + (sentence * keys + k) * U + unit, inside)
            part = tl.sum(weight[None] / (1.0 + a * b[None]), 1)
            tl.store(place + k, everything - 2.0 * part, mask=some)

    @triton.jit
    def _scores_back(
        own, other, v, given, for_own, heard, own_lengths, other_lengths, rows, others, row_pitch, other_pitch, U,
        WEIGH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    ):  # fmt: skip
        """The gradient of one side, and what v's is made of: the sum of given / (1 + E(a) E(b)), by program."""
        sentence = tl.program_id(0).to(tl.int64)
        first = tl.program_id(1) * ROWS
        row = first + tl.arange(0, ROWS)
        unit = tl.program_id(2) * UNITS + tl.arange(0, UNITS)
        some, inside = row < rows, unit < U
        both = some[:, None] & inside[None]
        at = (sentence * rows + row[:, None]) * U + unit[None]
        a = _raised(own + at, both)
        slopes = tl.zeros((ROWS, UNITS), tl.float32)
        halves = tl.zeros((ROWS, UNITS), tl.float32)
        score_at = given + sentence * rows * others + row * row_pitch
        for place in range(0, _reach(own_lengths, other_lengths, sentence, first)):
            b = _raised(other + (sentence * others + place) * U + unit, inside)
            score = tl.load(score_at + place * other_pitch, mask=some, other=0.0)[:, None]
            half = 1.0 / (1.0 + a * b[None])
            slopes += score * (half - half * half)
            if WEIGH:
                halves += score * half
        weight = tl.load(v + unit, mask=inside, other=0.0).to(tl.float32)
        tl.store(for_own + at, (4.0 * weight[None] * slopes).to(for_own.dtype.element_ty), mask=both)
        if WEIGH:
            program = sentence * tl.num_programs(1) + tl.program_id(1)
            tl.store(heard + program * U + unit, tl.sum(halves, 0), mask=inside)


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, v, query_lengths, key_lengths):
        query, key, v = query.contiguous(), key.contiguous(), v.contiguous()
        (count, queries, units), keys = query.shape, key.shape[1]
        step = min(_UNITS, triton.next_power_of_2(units))
        grid = (count, triton.cdiv(queries, _QUERIES), triton.cdiv(units, step))
        out = torch.zeros(grid[2], count, queries, keys, dtype=torch.float32, device=query.device)
        lengths = (query_lengths, key_lengths)
        _scores[grid](query, key, v, out, *lengths, queries, keys, units, _QUERIES, step, num_warps=2)
        ctx.save_for_backward(query, key, v, *lengths)
        return out.sum(0)

    @staticmethod
    def backward(ctx, given):
        query, key, v, query_lengths, key_lengths = ctx.saved_tensors
        given = given.contiguous()
        (count, queries, units), keys = query.shape, key.shape[1]
        for_query, for_key = torch.empty_like(query), torch.empty_like(key)
        step = min(_ROW_UNITS, triton.next_power_of_2(units))
        tiles = triton.cdiv(queries, _ROWS), triton.cdiv(keys, _ROWS)
        heard = torch.empty(count, tiles[0], units, dtype=torch.float32, device=query.device)
        for side, sources, found, sizes in (
            (0, (query, key), for_query, (query_lengths, key_lengths, queries, keys, keys, 1)),
            (1, (key, query), for_key, (key_lengths, query_lengths, keys, queries, 1, keys)),
        ):
            grid = (count, tiles[side], triton.cdiv(units, step))
            _scores_back[grid](*sources, v, given, found, heard, *sizes, units, not side, _ROWS, step, num_warps=1)
        return for_query, for_key, (given.sum() - 2 * heard.sum((0, 1))).to(v.dtype), None, None


def additive_scores(query: Tensor, key: Tensor, v: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
    """sum_u v[u] tanh(query[n, q, u] + key[n, k, u]): float32 [N, Q, K].

    Beyond a sentence's queries and keys, int64 [N] of each, are arbitrary finite scores; their gradients must be 0.
    """
    return _AdditiveScores.apply(query, key, v, query_lengths, key_lengths)
