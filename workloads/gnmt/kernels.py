"""Scores of additive attention in one pass, forward and back: the sum over units is never kept apart by unit.

Shapes: N sentences, Q queries, K keys, U units.
"""

import torch
from torch import Tensor

from timetrial.workloads.common.kernels import available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

__all__ = ["additive_scores", "available"]

_UNITS = 32  # that a program of the backward pass owns
_LONGEST = 128  # queries that it takes at a time
_QUERIES, _KEYS = 16, 16  # that a program of the forward pass owns

if triton is not None:

    @triton.jit
    def _tanh(x):
        return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0

    @triton.jit
    def _scores(
        query, key, v, out, queries, keys, U: tl.constexpr, TQ: tl.constexpr, TK: tl.constexpr, STEP: tl.constexpr
    ):
        sentence = tl.program_id(0).to(tl.int64)
        q = tl.program_id(1) * TQ + tl.arange(0, TQ)
        k = tl.program_id(2) * TK + tl.arange(0, TK)
        some_q, some_k = q < queries, k < keys
        total = tl.zeros((TQ, TK), tl.float32)
        for start in range(0, U, STEP):
            unit = start + tl.arange(0, STEP)
            a = tl.load(query + (sentence * queries + q[:, None]) * U + unit[None], mask=some_q[:, None], other=0.0)
            b = tl.load(key + (sentence * keys + k[:, None]) * U + unit[None], mask=some_k[:, None], other=0.0)
            weight = tl.load(v + unit).to(tl.float32)
            bent = _tanh(a.to(tl.float32)[:, None, :] + b.to(tl.float32)[None, :, :])
            total += tl.sum(bent * weight[None, None, :], 2)
        place = out + (sentence * queries + q[:, None]) * keys + k[None]
        tl.store(place, total, mask=some_q[:, None] & some_k[None])

    @triton.jit
    def _scores_back(
        query,
        key,
        v,
        given,
        for_query,
        for_key,
        for_v,
        queries,
        keys,
        U: tl.constexpr,
        TQ: tl.constexpr,
        TU: tl.constexpr,
    ):
        sentence = tl.program_id(0).to(tl.int64)
        unit = tl.program_id(1) * TU + tl.arange(0, TU)
        weight = tl.load(v + unit).to(tl.float32)
        sum_v = tl.zeros((TU,), tl.float32)
        for first in range(0, queries, TQ):
            q = first + tl.arange(0, TQ)
            some = q < queries
            at_q = (sentence * queries + q[:, None]) * U + unit[None]
            a = tl.load(query + at_q, mask=some[:, None], other=0.0).to(tl.float32)
            sum_q = tl.zeros((TQ, TU), tl.float32)
            for k in range(0, keys):
                at_k = (sentence * keys + k) * U + unit
                bent = _tanh(a + tl.load(key + at_k).to(tl.float32)[None])
                score = tl.load(given + (sentence * queries + q) * keys + k, mask=some, other=0.0)
                slope = score[:, None] * weight[None] * (1.0 - bent * bent)
                sum_q += slope
                before = tl.load(for_key + at_k)
                tl.store(for_key + at_k, before + tl.sum(slope, 0))
                sum_v += tl.sum(score[:, None] * bent, 0)
            tl.debug_barrier()  # other threads of the program read these keys' sums in the next round
            tl.store(for_query + at_q, sum_q.to(for_query.dtype.element_ty), mask=some[:, None])
        tl.store(for_v + sentence * U + unit, sum_v)


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, v):
        query, key, v = query.contiguous(), key.contiguous(), v.contiguous()
        count, queries, units = query.shape
        keys = key.shape[1]
        out = torch.empty(count, queries, keys, dtype=torch.float32, device=query.device)
        grid = (count, triton.cdiv(queries, _QUERIES), triton.cdiv(keys, _KEYS))
        _scores[grid](query, key, v, out, queries, keys, units, _QUERIES, _KEYS, min(units, 16))
        ctx.save_for_backward(query, key, v)
        return out

    @staticmethod
    def backward(ctx, given):
        query, key, v = ctx.saved_tensors
        count, queries, units = query.shape
        keys = key.shape[1]
        for_query = torch.empty_like(query)
        for_key = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        for_v = torch.empty(count, units, dtype=torch.float32, device=key.device)
        tile = triton.next_power_of_2(min(queries, _LONGEST))
        _scores_back[(count, units // _UNITS)](
            query,
            key,
            v,
            given.contiguous(),
            for_query,
            for_key,
            for_v,
            queries,
            keys,
            units,
            tile,
            _UNITS,
            num_warps=8 if tile > 64 else 4,
        )
        return for_query, for_key.to(key.dtype), for_v.sum(0).to(v.dtype)


def additive_scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """sum_u v[u] tanh(query[n, q, u] + key[n, k, u]): float32 [N, Q, K]; U is a multiple of 32."""
    return _AdditiveScores.apply(query, key, v)
