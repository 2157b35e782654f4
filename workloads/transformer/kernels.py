"""Attention between packed sentences by Triton: tiles of pieces, whosever they are, over the pieces that they may see.

A tile of queries spans the end of one sentence and the next ones; it meets the keys from the first of these sentences
to the last, and of the scores only those between pieces of one sentence count. So there is one size of work for
sentences of all lengths. Shapes: T pieces, H heads, D width of a head, N sentences. Every sum is kept in fp32.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..common.nn.triton_support import available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

__all__ = ["attention", "fits"]

# Of each kernel its own side's tile, the other side's, warps and stages: the fastest of 24 on an H200 (PERFORMANCE.md).
_FORWARD = {"TILE": 64, "STEP": 32, "num_warps": 4, "num_stages": 1}
_BACKWARD = {"TILE": 32, "STEP": 16, "num_warps": 2, "num_stages": 2}
_LOG2E = 1.4426950408889634


def fits(query: Tensor) -> bool:
    """Whether the kernels run here, for heads of this width [..., D]."""
    return available(query) and query.shape[-1] in (16, 32, 64, 128)


if triton is not None:

    @triton.jit
    def _chance(seed, row, column):
        """A number from 0 to 2**24 - 1 for each pair: bits mixed twice (with the constants of Wellons' lowbias32)."""
        x = (row.to(tl.uint32) * 0x9E3779B1)[:, None] ^ (column.to(tl.uint32) * 0x85EBCA77)[None] ^ seed.to(tl.uint32)
        x ^= x >> 16
        x *= 0x7FEB352D
        x ^= x >> 15
        x *= 0x846CA68B
        return ((x ^ (x >> 16)) >> 8).to(tl.int32)

    @triton.jit
    def _load(at, rows, inside, pitch, D: tl.constexpr):
        return tl.load(at + rows.to(tl.int64)[:, None] * pitch + tl.arange(0, D)[None], mask=inside[:, None], other=0.0)

    @triton.jit
    def _store(at, rows, inside, pitch, value, D: tl.constexpr):
        place = at + rows.to(tl.int64)[:, None] * pitch + tl.arange(0, D)[None]
        tl.store(place, value.to(at.dtype.element_ty), mask=inside[:, None])

    @triton.jit
    def _span(sentences, bounds, first, pieces, TILE: tl.constexpr):
        """From where to where the other side's pieces lie for the sentences of a tile that begins at `first`."""
        start = tl.load(bounds + tl.load(sentences + first))
        stop = tl.load(bounds + tl.load(sentences + tl.minimum(first + TILE, pieces) - 1) + 1)
        return start, stop

    @triton.jit
    def _met(asked, seen, own_row, own_column, rows, columns, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
        """Scores of a tile, and which of them are between a piece and one that it may see."""
        counts = own_row[:, None] == own_column[None]
        if CAUSAL:
            counts = counts & (columns[None] <= rows[:, None])
        return tl.dot(asked, tl.trans(seen), input_precision=PRECISION) * scale, counts

    @triton.jit
    def _forward(
        q, k, v, out, mass, own_q, own_k, bounds_k, seed, pieces, q_pitch, kv_pitch, scale, least, lift,
        CAUSAL: tl.constexpr, DROP: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
        TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        rows = first + tl.arange(0, TILE)
        some = rows < pieces
        mine = tl.load(own_q + rows, mask=some, other=-1)
        start, stop = _span(own_q, bounds_k, first, pieces, TILE)
        if CAUSAL:
            stop = tl.minimum(stop, first + TILE)
        if DROP:
            chance = tl.load(seed) + head * 0x27D4EB2F
        asked = _load(q + head * D, rows, some, q_pitch, D)
        most = tl.full((TILE,), -1.0e30, tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        mixed = tl.zeros((TILE, D), tl.float32)
        for at in range(start, stop, STEP):
            columns = at + tl.arange(0, STEP)
            there = columns < stop
            seen = _load(k + head * D, columns, there, kv_pitch, D)
            theirs = tl.load(own_k + columns, mask=there, other=-2)
            score, counts = _met(asked, seen, mine, theirs, rows, columns, scale, CAUSAL, PRECISION)
            higher = tl.maximum(most, tl.max(tl.where(counts, score, -1.0e30), 1))
            weight = tl.where(counts, tl.exp2(score - higher[:, None]), 0.0)
            fade = tl.exp2(most - higher)
            total = total * fade + tl.sum(weight, 1)
            if DROP:
                weight = tl.where(_chance(chance, rows, columns) >= least, weight, 0.0)
            values = _load(v + head * D, columns, there, kv_pitch, D)
            mixed = mixed * fade[:, None] + tl.dot(weight.to(values.dtype), values, input_precision=PRECISION)
            most = higher
        total = tl.where(total > 0.0, total, 1.0)
        _store(out + head * D, rows, some, H * D, mixed * (lift / total)[:, None], D)
        tl.store(mass + rows * H + head, most + tl.log2(total), mask=some)

    @triton.jit
    def _backward_q(
        q, k, v, out, given, mass, delta, for_q, own_q, own_k, bounds_k, seed, pieces, q_pitch, kv_pitch, scale,
        natural, least, lift,
        CAUSAL: tl.constexpr, DROP: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
        TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        rows = first + tl.arange(0, TILE)
        some = rows < pieces
        mine = tl.load(own_q + rows, mask=some, other=-1)
        start, stop = _span(own_q, bounds_k, first, pieces, TILE)
        if CAUSAL:
            stop = tl.minimum(stop, first + TILE)
        if DROP:
            chance = tl.load(seed) + head * 0x27D4EB2F
        asked = _load(q + head * D, rows, some, q_pitch, D)
        wanted = _load(given + head * D, rows, some, H * D, D)
        said = _load(out + head * D, rows, some, H * D, D)
        level = tl.load(mass + rows * H + head, mask=some, other=0.0)
        inner = tl.sum(said.to(tl.float32) * wanted.to(tl.float32), 1)
        tl.store(delta + rows * H + head, inner, mask=some)
        total = tl.zeros((TILE, D), tl.float32)
        for at in range(start, stop, STEP):
            columns = at + tl.arange(0, STEP)
            there = columns < stop
            seen = _load(k + head * D, columns, there, kv_pitch, D)
            theirs = tl.load(own_k + columns, mask=there, other=-2)
            score, counts = _met(asked, seen, mine, theirs, rows, columns, scale, CAUSAL, PRECISION)
            weight = tl.where(counts, tl.exp2(score - level[:, None]), 0.0)
            values = _load(v + head * D, columns, there, kv_pitch, D)
            slope = tl.dot(wanted, tl.trans(values), input_precision=PRECISION)
            if DROP:
                slope = tl.where(_chance(chance, rows, columns) >= least, slope * lift, 0.0)
            change = weight * (slope - inner[:, None]) * natural
            total += tl.dot(change.to(seen.dtype), seen, input_precision=PRECISION)
        _store(for_q + head * D, rows, some, q_pitch, total, D)

    @triton.jit
    def _backward_kv(
        q, k, v, given, mass, delta, for_k, for_v, own_q, own_k, bounds_q, seed, pieces, q_pitch, kv_pitch, scale,
        natural, least, lift,
        CAUSAL: tl.constexpr, DROP: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
        TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        columns = first + tl.arange(0, TILE)
        some = columns < pieces
        mine = tl.load(own_k + columns, mask=some, other=-1)
        start, stop = _span(own_k, bounds_q, first, pieces, TILE)
        if CAUSAL:
            start = tl.maximum(start, first)
        if DROP:
            chance = tl.load(seed) + head * 0x27D4EB2F
        seen = _load(k + head * D, columns, some, kv_pitch, D)
        values = _load(v + head * D, columns, some, kv_pitch, D)
        sum_k = tl.zeros((TILE, D), tl.float32)
        sum_v = tl.zeros((TILE, D), tl.float32)
        for at in range(start, stop, STEP):
            rows = at + tl.arange(0, STEP)
            there = rows < stop
            asked = _load(q + head * D, rows, there, q_pitch, D)
            wanted = _load(given + head * D, rows, there, H * D, D)
            level = tl.load(mass + rows * H + head, mask=there, other=0.0)
            inner = tl.load(delta + rows * H + head, mask=there, other=0.0)
            theirs = tl.load(own_q + rows, mask=there, other=-2)
            score, counts = _met(asked, seen, theirs, mine, rows, columns, scale, CAUSAL, PRECISION)
            weight = tl.where(counts, tl.exp2(score - level[:, None]), 0.0)
            slope = tl.dot(wanted, tl.trans(values), input_precision=PRECISION)
            heard = weight
            if DROP:
                kept = _chance(chance, rows, columns) >= least
                slope = tl.where(kept, slope * lift, 0.0)
                heard = tl.where(kept, weight * lift, 0.0)
            sum_v += tl.dot(tl.trans(heard).to(wanted.dtype), wanted, input_precision=PRECISION)
            change = weight * (slope - inner[:, None]) * natural
            sum_k += tl.dot(tl.trans(change).to(asked.dtype), asked, input_precision=PRECISION)
        _store(for_k + head * D, columns, some, kv_pitch, sum_k, D)
        _store(for_v + head * D, columns, some, kv_pitch, sum_v, D)


def _precision() -> str:
    """Of products of float32: what PyTorch's own are allowed."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _constants(dropout: float, width: int) -> tuple[float, float, int, float]:
    """What scores are multiplied by, to base 2 and e; the least number that is kept, and what the kept count."""
    natural = width**-0.5
    return natural * _LOG2E, natural, int(dropout * 2**24), 1 / (1 - dropout)


@torch.library.custom_op("timetrial::packed_attention", mutates_args=())
def _attention(
    own: Tensor, seen: Tensor, own_q: Tensor, own_k: Tensor, bounds_q: Tensor, bounds_k: Tensor, seed: Tensor,
    causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    pieces, _, heads, width = own.shape
    out = torch.empty(pieces, heads, width, dtype=own.dtype, device=own.device)
    mass = torch.empty(pieces, heads, dtype=torch.float32, device=own.device)
    scale, _, least, lift = _constants(dropout, width)
    key, value = seen[:, -2], seen[:, -1]
    _forward[(triton.cdiv(pieces, _FORWARD["TILE"]), heads)](
        own, key, value, out, mass, own_q, own_k, bounds_k, seed, pieces, own.stride(0), seen.stride(0), scale, least,
        lift, causal, dropout > 0, heads, width, _precision(), **_FORWARD,
    )  # fmt: skip
    return out, mass


@_attention.register_fake
def _(own, seen, own_q, own_k, bounds_q, bounds_k, seed, causal, dropout):
    pieces, _, heads, width = own.shape
    return own.new_empty(pieces, heads, width), own.new_empty(pieces, heads, dtype=torch.float32)


@torch.library.custom_op("timetrial::packed_attention_backward", mutates_args=())
def _attention_backward(
    given: Tensor, out: Tensor, mass: Tensor, own: Tensor, seen: Tensor, own_q: Tensor, own_k: Tensor,
    bounds_q: Tensor, bounds_k: Tensor, seed: Tensor, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    pieces, parts, heads, width = own.shape
    together = parts == 3  # queries, keys and values are one tensor's
    for_own = torch.empty_like(own)
    for_seen = for_own if together else torch.empty_like(seen)
    delta = torch.empty_like(mass)
    scale, natural, least, lift = _constants(dropout, width)
    key, value = seen[:, -2], seen[:, -1]
    numbers = (own.stride(0), seen.stride(0), scale, natural, least, lift)
    constants = (causal, dropout > 0, heads, width, _precision())
    _backward_q[(triton.cdiv(pieces, _BACKWARD["TILE"]), heads)](
        own, key, value, out, given, mass, delta, for_own, own_q, own_k, bounds_k, seed, pieces, *numbers, *constants,
        **_BACKWARD,
    )  # fmt: skip
    _backward_kv[(triton.cdiv(len(seen), _BACKWARD["TILE"]), heads)](
        own, key, value, given, mass, delta, for_seen[:, -2], for_seen[:, -1], own_q, own_k, bounds_q, seed, len(seen),
        *numbers, *constants, **_BACKWARD,
    )  # fmt: skip
    return for_own, for_own.new_empty(0) if together else for_seen


@_attention_backward.register_fake
def _(given, out, mass, own, seen, own_q, own_k, bounds_q, bounds_k, seed, causal, dropout):
    return torch.empty_like(own), own.new_empty(0) if own.shape[1] == 3 else torch.empty_like(seen)


def _pairs(own_q: Tensor, bounds_k: Tensor) -> int:
    """How many keys all queries have."""
    return int(bounds_k.diff()[own_q].sum())


# Two products of each query with its keys forward, five backward, as torch counts its own attention.
@register_flop_formula(torch.ops.timetrial.packed_attention, get_raw=True)
def _operations(own, seen, own_q, own_k, bounds_q, bounds_k, *_, **__):
    return 4 * _pairs(own_q, bounds_k) * own.shape[-2] * own.shape[-1]


@register_flop_formula(torch.ops.timetrial.packed_attention_backward, get_raw=True)
def _operations_back(given, out, mass, own, seen, own_q, own_k, bounds_q, bounds_k, *_, **__):
    return 10 * _pairs(own_q, bounds_k) * own.shape[-2] * own.shape[-1]


def _remember(ctx, inputs, output):
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx, given, _):
    out, mass, own, seen, *rest = ctx.saved_tensors
    for_own, for_seen = _attention_backward(given.contiguous(), out, mass, own, seen, *rest, ctx.causal, ctx.dropout)
    return for_own, None if own.shape[1] == 3 else for_seen, *[None] * 7


_attention.register_autograd(_differentiate, setup_context=_remember)


def attention(
    own: Tensor, seen: Tensor | None, own_q: Tensor, own_k: Tensor, bounds_q: Tensor, bounds_k: Tensor, *,
    causal: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """[T, H, D]: softmax(q k / sqrt(D)) v within sentences, with dropout of the weights.

    `own` [T, 3, H, D] holds queries, keys and values, and `seen` is None; or `own` [T, 1, H, D] the queries and `seen`
    [S, 2, H, D] keys and values. `own_q` and `own_k` int64 say whose each piece is, `bounds_q` and `bounds_k` int32
    [N + 1] where sentences begin; every query's sentence has keys.
    """
    seed = torch.randint(2**31 - 1, (1,), dtype=torch.int32, device=own.device)
    own = own.contiguous()
    other = own.detach() if seen is None else seen.contiguous()
    return _attention(own, other, own_q, own_k, bounds_q, bounds_k, seed, causal, dropout)[0]
