"""Triton kernels for attention between packed sentences.

If no sentence is longer than 64 tokens, a program takes a whole sentence at once, for some heads: it reads each token
once, and in the backward pass recomputes the softmax and writes all gradients. For longer sentences, a tile of queries
covers the end of one sentence and the next ones. It is multiplied with the keys from the first to the last of these
sentences, and the scores between different sentences are masked. So all tiles have the same shape, whatever the
lengths. Every sum is kept in fp32. Shapes: T and S query and key tokens, H heads, D head size, N sentences.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..common.nn.triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

__all__ = ["attention", "is_supported"]

# Tile of a kernel's own side, step over the other side, warps, stages: the fastest of 24 on an H200 (PERFORMANCE.md).
_FORWARD = {"TILE": 64, "STEP": 32, "num_warps": 4, "num_stages": 1}
_BACKWARD = {"TILE": 32, "STEP": 16, "num_warps": 2, "num_stages": 2}
# Kernels of whole sentences: one for those of at most 32 tokens on their longer side, one for the others.
_SENTENCES = ({"BLOCK": 32, "num_warps": 2, "num_stages": 2}, {"BLOCK": 64, "num_warps": 4, "num_stages": 2})
_HEADS = 8  # of a sentence per program
_LOG2E = 1.4426950408889634


def is_supported(query: Tensor) -> bool:
    """Return whether the kernels can run on the device of `query` [..., D] and support its head size."""
    return triton_available(query) and query.shape[-1] in (16, 32, 64, 128)


if triton is not None:

    @triton.jit
    def _random_24_bits(seed, head, row, column, STOCK: tl.constexpr):
        """Return a random number below 2**24 for each pair; STOCK: by Triton's Philox, else by a faster hash.

        Key and counter of Philox are (seed, head) and (row, column). The hash has the constants of Wellons' lowbias32.
        """
        if STOCK:
            key = seed.to(tl.int64) | (head.to(tl.int64) << 32)
            counter = (row.to(tl.int64) << 32)[:, None] | column.to(tl.int64)[None]
            x = tl.randint(key, counter).to(tl.uint32)
        else:
            x = (row.to(tl.uint32) * 0x9E3779B1)[:, None] ^ (column.to(tl.uint32) * 0x85EBCA77)[None]
            x ^= (seed + head * 0x27D4EB2F).to(tl.uint32)
            x ^= x >> 16
            x *= 0x7FEB352D
            x ^= x >> 15
            x *= 0x846CA68B
            x ^= x >> 16
        return (x >> 8).to(tl.int32)

    @triton.jit
    def _load(base, rows, mask, stride, D: tl.constexpr):
        pointers = base + rows.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None]
        return tl.load(pointers, mask=mask[:, None], other=0.0)

    @triton.jit
    def _store(base, rows, mask, stride, value, D: tl.constexpr):
        pointers = base + rows.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None]
        tl.store(pointers, value.to(base.dtype.element_ty), mask=mask[:, None])

    @triton.jit
    def _other_range(sentence_ids, other_cu_seqlens, first, tokens, TILE: tl.constexpr):
        """Return the range of the other side's tokens for the sentences of the tile that begins at `first`."""
        start = tl.load(other_cu_seqlens + tl.load(sentence_ids + first))
        stop = tl.load(other_cu_seqlens + tl.load(sentence_ids + tl.minimum(first + TILE, tokens) - 1) + 1)
        return start, stop

    @triton.jit
    def _scores(
        q, k, q_sentence, k_sentence, rows, columns, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr
    ):  # fmt: skip
        """Return the scores of a tile and the mask of those within a sentence and, with CAUSAL, not later."""
        mask = q_sentence[:, None] == k_sentence[None]
        if CAUSAL:
            mask = mask & (columns[None] <= rows[:, None])
        return tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale, mask

    @triton.jit
    def _forward(
        q, k, v, out, lse, q_sentences, k_sentences, cu_seqlens_k, seed, tokens, q_stride, kv_stride, scale_log2,
        scale, drop_threshold, keep_scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        """Outputs and base-2 log-sum-exp of a tile of queries, with an online softmax over the keys."""
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        rows = first + tl.arange(0, TILE)
        row_mask = rows < tokens
        q_sentence = tl.load(q_sentences + rows, mask=row_mask, other=-1)
        start, stop = _other_range(q_sentences, cu_seqlens_k, first, tokens, TILE)
        if CAUSAL:
            stop = tl.minimum(stop, first + TILE)
        if DROPOUT:
            step_seed = tl.load(seed)
        q_tile = _load(q + head * D, rows, row_mask, q_stride, D)
        running_max = tl.full((TILE,), -1.0e30, tl.float32)
        weight_sum = tl.zeros((TILE,), tl.float32)
        output = tl.zeros((TILE, D), tl.float32)
        for index in range(start, stop, STEP):
            columns = index + tl.arange(0, STEP)
            column_mask = columns < stop
            k_tile = _load(k + head * D, columns, column_mask, kv_stride, D)
            k_sentence = tl.load(k_sentences + columns, mask=column_mask, other=-2)
            score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
            new_max = tl.maximum(running_max, tl.max(tl.where(mask, score, -1.0e30), 1))
            weight = tl.where(mask, tl.exp2(score - new_max[:, None]), 0.0)
            rescale = tl.exp2(running_max - new_max)
            weight_sum = weight_sum * rescale + tl.sum(weight, 1)
            if DROPOUT:
                kept = _random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                weight = tl.where(kept, weight, 0.0)
            v_tile = _load(v + head * D, columns, column_mask, kv_stride, D)
            output = output * rescale[:, None] + tl.dot(weight.to(v_tile.dtype), v_tile, input_precision=PRECISION)
            running_max = new_max
        weight_sum = tl.where(weight_sum > 0.0, weight_sum, 1.0)
        _store(out + head * D, rows, row_mask, H * D, output * (keep_scale / weight_sum)[:, None], D)
        tl.store(lse + rows * H + head, running_max + tl.log2(weight_sum), mask=row_mask)

    @triton.jit
    def _backward_q(
        q, k, v, out, grad_out, lse, delta, grad_q, q_sentences, k_sentences, cu_seqlens_k, seed, tokens, q_stride,
        kv_stride, scale_log2, scale, drop_threshold, keep_scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        """Gradient of a tile of queries; also stores `delta`, the product of outputs and their gradients by row."""
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        rows = first + tl.arange(0, TILE)
        row_mask = rows < tokens
        q_sentence = tl.load(q_sentences + rows, mask=row_mask, other=-1)
        start, stop = _other_range(q_sentences, cu_seqlens_k, first, tokens, TILE)
        if CAUSAL:
            stop = tl.minimum(stop, first + TILE)
        if DROPOUT:
            step_seed = tl.load(seed)
        q_tile = _load(q + head * D, rows, row_mask, q_stride, D)
        grad_tile = _load(grad_out + head * D, rows, row_mask, H * D, D)
        out_tile = _load(out + head * D, rows, row_mask, H * D, D)
        row_lse = tl.load(lse + rows * H + head, mask=row_mask, other=0.0)
        row_delta = tl.sum(out_tile.to(tl.float32) * grad_tile.to(tl.float32), 1)
        tl.store(delta + rows * H + head, row_delta, mask=row_mask)
        grad_sum = tl.zeros((TILE, D), tl.float32)
        for index in range(start, stop, STEP):
            columns = index + tl.arange(0, STEP)
            column_mask = columns < stop
            k_tile = _load(k + head * D, columns, column_mask, kv_stride, D)
            k_sentence = tl.load(k_sentences + columns, mask=column_mask, other=-2)
            score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
            weight = tl.where(mask, tl.exp2(score - row_lse[:, None]), 0.0)
            v_tile = _load(v + head * D, columns, column_mask, kv_stride, D)
            grad_weight = tl.dot(grad_tile, tl.trans(v_tile), input_precision=PRECISION)
            if DROPOUT:
                kept = _random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                grad_weight = tl.where(kept, grad_weight * keep_scale, 0.0)
            grad_score = weight * (grad_weight - row_delta[:, None]) * scale
            grad_sum += tl.dot(grad_score.to(k_tile.dtype), k_tile, input_precision=PRECISION)
        _store(grad_q + head * D, rows, row_mask, q_stride, grad_sum, D)

    @triton.jit
    def _backward_kv(
        q, k, v, grad_out, lse, delta, grad_k, grad_v, q_sentences, k_sentences, cu_seqlens_q, seed, tokens, q_stride,
        kv_stride, scale_log2, scale, drop_threshold, keep_scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a tile of keys and values; `delta` comes from `_backward_q`."""
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        columns = first + tl.arange(0, TILE)
        column_mask = columns < tokens
        k_sentence = tl.load(k_sentences + columns, mask=column_mask, other=-1)
        start, stop = _other_range(k_sentences, cu_seqlens_q, first, tokens, TILE)
        if CAUSAL:
            start = tl.maximum(start, first)
        if DROPOUT:
            step_seed = tl.load(seed)
        k_tile = _load(k + head * D, columns, column_mask, kv_stride, D)
        v_tile = _load(v + head * D, columns, column_mask, kv_stride, D)
        k_grad_sum = tl.zeros((TILE, D), tl.float32)
        v_grad_sum = tl.zeros((TILE, D), tl.float32)
        for index in range(start, stop, STEP):
            rows = index + tl.arange(0, STEP)
            row_mask = rows < stop
            q_tile = _load(q + head * D, rows, row_mask, q_stride, D)
            grad_tile = _load(grad_out + head * D, rows, row_mask, H * D, D)
            row_lse = tl.load(lse + rows * H + head, mask=row_mask, other=0.0)
            row_delta = tl.load(delta + rows * H + head, mask=row_mask, other=0.0)
            q_sentence = tl.load(q_sentences + rows, mask=row_mask, other=-2)
            score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
            weight = tl.where(mask, tl.exp2(score - row_lse[:, None]), 0.0)
            grad_weight = tl.dot(grad_tile, tl.trans(v_tile), input_precision=PRECISION)
            dropped_weight = weight
            if DROPOUT:
                kept = _random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                grad_weight = tl.where(kept, grad_weight * keep_scale, 0.0)
                dropped_weight = tl.where(kept, weight * keep_scale, 0.0)
            v_grad_sum += tl.dot(
                tl.trans(dropped_weight).to(grad_tile.dtype), grad_tile, input_precision=PRECISION
            )  # fmt: skip
            grad_score = weight * (grad_weight - row_delta[:, None]) * scale
            k_grad_sum += tl.dot(tl.trans(grad_score).to(q_tile.dtype), q_tile, input_precision=PRECISION)
        _store(grad_k + head * D, columns, column_mask, kv_stride, k_grad_sum, D)
        _store(grad_v + head * D, columns, column_mask, kv_stride, v_grad_sum, D)

    @triton.jit
    def _find_sentence(cu_seqlens_q, cu_seqlens_k, H: tl.constexpr, HEADS: tl.constexpr):
        """Return this program's first head, and the first token and the length of its sentence on both sides."""
        sentence, group = tl.program_id(0) // (H // HEADS), tl.program_id(0) % (H // HEADS)
        q_start, k_start = tl.load(cu_seqlens_q + sentence), tl.load(cu_seqlens_k + sentence)
        q_length = tl.load(cu_seqlens_q + sentence + 1) - q_start
        k_length = tl.load(cu_seqlens_k + sentence + 1) - k_start
        return group * HEADS, q_start, q_length, k_start, k_length

    @triton.jit
    def _softmax(q, k, row_mask, column_mask, scale_log2, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
        """Return the weights of a sentence before they are divided by their sums, and 1 / sums (1 for masked rows)."""
        mask = row_mask[:, None] & column_mask[None]
        if CAUSAL:
            mask = mask & (tl.arange(0, k.shape[0])[None] <= tl.arange(0, q.shape[0])[:, None])
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        score = tl.where(mask, score, -1.0e30)
        weight = tl.where(mask, tl.exp2(score - tl.max(score, 1)[:, None]), 0.0)
        weight_sum = tl.sum(weight, 1)
        return weight, 1.0 / tl.where(weight_sum > 0.0, weight_sum, 1.0)

    @triton.jit
    def _forward_sentence(
        q, k, v, out, cu_seqlens_q, cu_seqlens_k, seed, q_stride, kv_stride, scale_log2, scale, drop_threshold,
        keep_scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, HEADS: tl.constexpr, SHORTER: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Outputs of a sentence whose longer side has more than SHORTER and at most BLOCK tokens."""
        first_head, q_start, q_length, k_start, k_length = _find_sentence(cu_seqlens_q, cu_seqlens_k, H, HEADS)
        length = tl.maximum(q_length, k_length)
        if (length <= SHORTER) | (length > BLOCK):
            return
        index = tl.arange(0, BLOCK)
        rows, columns, row_mask, column_mask = q_start + index, k_start + index, index < q_length, index < k_length
        if DROPOUT:
            step_seed = tl.load(seed)
        for offset in range(HEADS):
            head = first_head + offset
            q_block = _load(q + head * D, rows, row_mask, q_stride, D)
            k_block = _load(k + head * D, columns, column_mask, kv_stride, D)
            v_block = _load(v + head * D, columns, column_mask, kv_stride, D)
            weight, inverse_sum = _softmax(q_block, k_block, row_mask, column_mask, scale_log2, CAUSAL, PRECISION)
            if DROPOUT:
                kept = _random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                weight = tl.where(kept, weight, 0.0)
            output = tl.dot(weight.to(v_block.dtype), v_block, input_precision=PRECISION)
            _store(out + head * D, rows, row_mask, H * D, output * (inverse_sum * keep_scale)[:, None], D)

    @triton.jit
    def _backward_sentence(
        q, k, v, grad_out, grad_q, grad_k, grad_v, cu_seqlens_q, cu_seqlens_k, seed, q_stride, kv_stride, scale_log2,
        scale, drop_threshold, keep_scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, HEADS: tl.constexpr, SHORTER: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """All gradients of a sentence whose longer side has more than SHORTER and at most BLOCK tokens."""
        first_head, q_start, q_length, k_start, k_length = _find_sentence(cu_seqlens_q, cu_seqlens_k, H, HEADS)
        length = tl.maximum(q_length, k_length)
        if (length <= SHORTER) | (length > BLOCK):
            return
        index = tl.arange(0, BLOCK)
        rows, columns, row_mask, column_mask = q_start + index, k_start + index, index < q_length, index < k_length
        if DROPOUT:
            step_seed = tl.load(seed)
        for offset in range(HEADS):
            head = first_head + offset
            q_block = _load(q + head * D, rows, row_mask, q_stride, D)
            k_block = _load(k + head * D, columns, column_mask, kv_stride, D)
            v_block = _load(v + head * D, columns, column_mask, kv_stride, D)
            grad_block = _load(grad_out + head * D, rows, row_mask, H * D, D)
            weight, inverse_sum = _softmax(q_block, k_block, row_mask, column_mask, scale_log2, CAUSAL, PRECISION)
            weight *= inverse_sum[:, None]
            grad_weight = tl.dot(grad_block, tl.trans(v_block), input_precision=PRECISION)
            dropped_weight = weight
            if DROPOUT:
                kept = _random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                grad_weight = tl.where(kept, grad_weight * keep_scale, 0.0)
                dropped_weight = tl.where(kept, weight * keep_scale, 0.0)
            v_grad = tl.dot(tl.trans(dropped_weight.to(grad_block.dtype)), grad_block, input_precision=PRECISION)
            _store(grad_v + head * D, columns, column_mask, kv_stride, v_grad, D)
            row_product = tl.sum(weight * grad_weight, 1)  # the gradient of the softmax's sum
            grad_score = (weight * (grad_weight - row_product[:, None]) * scale).to(q_block.dtype)
            q_grad = tl.dot(grad_score, k_block, input_precision=PRECISION)
            _store(grad_q + head * D, rows, row_mask, q_stride, q_grad, D)
            k_grad = tl.dot(tl.trans(grad_score), q_block, input_precision=PRECISION)
            _store(grad_k + head * D, columns, column_mask, kv_stride, k_grad, D)


def _for_sentences(kernel: Any, cu_seqlens: Tensor, heads: int, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel of whole sentences for each range of lengths."""
    shorter, heads_per_program = 0, math.gcd(heads, _HEADS)
    for options in _SENTENCES:
        grid = ((len(cu_seqlens) - 1) * heads // heads_per_program,)
        kernel[grid](*arguments, HEADS=heads_per_program, SHORTER=shorter, **options)
        shorter = options["BLOCK"]


def _has_whole_sentences(max_seqlen: int) -> bool:
    return max_seqlen <= _SENTENCES[-1]["BLOCK"]


def _dot_precision() -> str:
    """Return the precision of float32 products that PyTorch's own matrix products are set to."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _constants(dropout: float, head_size: int) -> tuple[float, float, int, float]:
    """Return the factors of the scores to base 2 and e, the least random number that is kept, and 1 / (1 - dropout)."""
    scale = head_size**-0.5
    return scale * _LOG2E, scale, int(dropout * 2**24), 1 / (1 - dropout)


@torch.library.custom_op("timetrial::packed_attention", mutates_args=())
def _attention(
    q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    seed: Tensor, max_seqlen: int, causal: bool, dropout: float, stock_random: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, _, heads, head_size = q_or_qkv.shape
    out = q_or_qkv.new_empty(tokens, heads, head_size)
    inputs = (q_or_qkv, kv[:, -2], kv[:, -1])
    numbers = (q_or_qkv.stride(0), kv.stride(0), *_constants(dropout, head_size))
    constants = (causal, dropout > 0, stock_random, heads, head_size, _dot_precision())
    if _has_whole_sentences(max_seqlen):
        arguments = (*inputs, out, cu_seqlens_q, cu_seqlens_k, seed, *numbers, *constants)
        _for_sentences(_forward_sentence, cu_seqlens_q, heads, arguments)
        return out, q_or_qkv.new_empty(0)
    lse = q_or_qkv.new_empty(tokens, heads, dtype=torch.float32)
    _forward[(triton.cdiv(tokens, _FORWARD["TILE"]), heads)](
        *inputs, out, lse, q_sentences, k_sentences, cu_seqlens_k, seed, tokens, *numbers, *constants, **_FORWARD
    )
    return out, lse


@_attention.register_fake
def _(
    q_or_qkv, kv, q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k, seed, max_seqlen, causal, dropout, stock_random
):
    tokens, _, heads, head_size = q_or_qkv.shape
    out = q_or_qkv.new_empty(tokens, heads, head_size)
    if _has_whole_sentences(max_seqlen):
        return out, q_or_qkv.new_empty(0)
    return out, q_or_qkv.new_empty(tokens, heads, dtype=torch.float32)


@torch.library.custom_op("timetrial::packed_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor, out: Tensor, lse: Tensor, q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seed: Tensor, max_seqlen: int, causal: bool, dropout: float,
    stock_random: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, parts, heads, head_size = q_or_qkv.shape
    is_self_attention = parts == 3  # queries, keys and values are in one tensor
    grad_own = torch.empty_like(q_or_qkv)
    grad_kv = grad_own if is_self_attention else torch.empty_like(kv)
    inputs, grads = (q_or_qkv, kv[:, -2], kv[:, -1]), (grad_kv[:, -2], grad_kv[:, -1])
    numbers = (q_or_qkv.stride(0), kv.stride(0), *_constants(dropout, head_size))
    constants = (causal, dropout > 0, stock_random, heads, head_size, _dot_precision())
    if _has_whole_sentences(max_seqlen):
        layout = (cu_seqlens_q, cu_seqlens_k, seed)
        arguments = (*inputs, grad_out, grad_own, *grads, *layout, *numbers, *constants)
        _for_sentences(_backward_sentence, cu_seqlens_q, heads, arguments)
    else:
        delta = torch.empty_like(lse)
        _backward_q[(triton.cdiv(tokens, _BACKWARD["TILE"]), heads)](
            *inputs, out, grad_out, lse, delta, grad_own, q_sentences, k_sentences, cu_seqlens_k, seed, tokens,
            *numbers, *constants, **_BACKWARD,
        )  # fmt: skip
        _backward_kv[(triton.cdiv(len(kv), _BACKWARD["TILE"]), heads)](
            *inputs, grad_out, lse, delta, *grads, q_sentences, k_sentences, cu_seqlens_q, seed, len(kv), *numbers,
            *constants, **_BACKWARD,
        )  # fmt: skip
    return grad_own, grad_own.new_empty(0) if is_self_attention else grad_kv


@_attention_backward.register_fake
def _(
    grad_out,
    out,
    lse,
    q_or_qkv,
    kv,
    q_sentences,
    k_sentences,
    cu_seqlens_q,
    cu_seqlens_k,
    seed,
    max_seqlen,
    causal,
    dropout,
    stock_random,
):
    return torch.empty_like(q_or_qkv), q_or_qkv.new_empty(0) if q_or_qkv.shape[1] == 3 else torch.empty_like(kv)


def _count_pairs(q_sentences: Tensor, cu_seqlens_k: Tensor) -> int:
    """Return the number of query-key pairs within sentences."""
    return int(cu_seqlens_k.diff()[q_sentences].sum())


# Two products per query-key pair forward and five backward, as PyTorch counts its own attention.
@register_flop_formula(torch.ops.timetrial.packed_attention, get_raw=True)
def _count_flops(q_or_qkv, kv, q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k, *_, **__):
    return 4 * _count_pairs(q_sentences, cu_seqlens_k) * q_or_qkv.shape[-2] * q_or_qkv.shape[-1]


@register_flop_formula(torch.ops.timetrial.packed_attention_backward, get_raw=True)
def _count_backward_flops(
    grad_out, out, lse, q_or_qkv, kv, q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k, *_, **__
):
    return 10 * _count_pairs(q_sentences, cu_seqlens_k) * q_or_qkv.shape[-2] * q_or_qkv.shape[-1]


def _setup_context(ctx, inputs, output):
    *tensors, ctx.max_seqlen, ctx.causal, ctx.dropout, ctx.stock_random = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad_out, _):
    out, lse, q_or_qkv, kv, *layout = ctx.saved_tensors
    options = (ctx.max_seqlen, ctx.causal, ctx.dropout, ctx.stock_random)
    grad_own, grad_kv = _attention_backward(grad_out.contiguous(), out, lse, q_or_qkv, kv, *layout, *options)
    return grad_own, None if q_or_qkv.shape[1] == 3 else grad_kv, *[None] * 9


_attention.register_autograd(_backward, setup_context=_setup_context)


def attention(
    q_or_qkv: Tensor,
    kv: Tensor | None,
    q_sentences: Tensor,
    k_sentences: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen: int,
    causal: bool,
    dropout: float,
    stock_random: bool,
) -> Tensor:
    """Return softmax(q k / sqrt(D)) v within sentences, with dropout of the weights: [T, H, D].

    For self-attention `q_or_qkv` [T, 3, H, D] holds queries, keys and values, and `kv` is None. For cross-attention it
    holds the queries [T, 1, H, D], and `kv` [S, 2, H, D] the keys and values. `q_sentences` and `k_sentences` int64 are
    each token's sentence; `cu_seqlens_q` and `cu_seqlens_k` int32 [N + 1] are the cumulative lengths, none of more than
    `max_seqlen` tokens. The sentence of every query must have keys. `stock_random`: draw the dropout with Triton's
    generator instead of a hash.
    """
    seed = torch.randint(2**31 - 1, (1,), dtype=torch.int32, device=q_or_qkv.device)
    q_or_qkv = q_or_qkv.contiguous()
    kv = q_or_qkv.detach() if kv is None else kv.contiguous()
    layout = (q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k)
    return _attention(q_or_qkv, kv, *layout, seed, max_seqlen, causal, dropout, stock_random)[0]
