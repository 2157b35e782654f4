"""Triton kernels of attention within short packed sentences, each at once.

A program takes HEADS heads of a sentence: it reads each token once, and in the backward pass recomputes the softmax and
writes all gradients. The shapes are those of `kernels.py`; a kernel takes the sentences whose longer side has more than
SHORTER and at most BLOCK tokens.
"""

from ..common.nn.triton_support import tl, triton
from .kernel_parts import draw_masks, is_kept, load_rows, store_rows


@triton.jit
def _find_sentence(cu_seqlens_q_ptr, cu_seqlens_k_ptr, H: tl.constexpr, HEADS: tl.constexpr):
    """Return this program's first head, and the first token and the length of its sentence on both sides."""
    sentence, group = tl.program_id(0) // (H // HEADS), tl.program_id(0) % (H // HEADS)
    q_start, k_start = tl.load(cu_seqlens_q_ptr + sentence), tl.load(cu_seqlens_k_ptr + sentence)
    q_length = tl.load(cu_seqlens_q_ptr + sentence + 1) - q_start
    k_length = tl.load(cu_seqlens_k_ptr + sentence + 1) - k_start
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
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, seed_ptr, q_stride, kv_stride, scale_log2,
    drop_threshold, keep_scale,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, HEADS: tl.constexpr, SHORTER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """O = dropout(softmax(Q K^T / sqrt(D))) V of a sentence."""
    first_head, q_start, q_length, k_start, k_length = _find_sentence(cu_seqlens_q_ptr, cu_seqlens_k_ptr, H, HEADS)
    length = tl.maximum(q_length, k_length)
    if (length <= SHORTER) | (length > BLOCK):
        return
    index = tl.arange(0, BLOCK)
    rows, columns, row_mask, column_mask = q_start + index, k_start + index, index < q_length, index < k_length
    if DROPOUT:
        masks = draw_masks(tl.load(seed_ptr), rows, columns, first_head, drop_threshold)
    for offset in range(HEADS):
        head = first_head + offset
        q_block = load_rows(q_ptr + head * D, rows, row_mask, q_stride, D)
        k_block = load_rows(k_ptr + head * D, columns, column_mask, kv_stride, D)
        v_block = load_rows(v_ptr + head * D, columns, column_mask, kv_stride, D)
        weight, inverse_sum = _softmax(q_block, k_block, row_mask, column_mask, scale_log2, CAUSAL, PRECISION)
        if DROPOUT:
            kept = is_kept(masks, head)
            weight = tl.where(kept, weight, 0.0)
        output = tl.dot(weight.to(v_block.dtype), v_block, input_precision=PRECISION)
        store_rows(out_ptr + head * D, rows, row_mask, H * D, output * (inverse_sum * keep_scale)[:, None], D)


@triton.jit
def backward(
    q_ptr, k_ptr, v_ptr, dout_ptr, dq_ptr, dk_ptr, dv_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, seed_ptr, q_stride,
    kv_stride, scale_log2, drop_threshold, keep_scale, scale,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, HEADS: tl.constexpr, SHORTER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dV = P'^T dO, dS = P (dP - rowsum(P dP)) / sqrt(D), dQ = dS K and dK = dS^T Q of a sentence (`kernels.py`)."""
    first_head, q_start, q_length, k_start, k_length = _find_sentence(cu_seqlens_q_ptr, cu_seqlens_k_ptr, H, HEADS)
    length = tl.maximum(q_length, k_length)
    if (length <= SHORTER) | (length > BLOCK):
        return
    index = tl.arange(0, BLOCK)
    rows, columns, row_mask, column_mask = q_start + index, k_start + index, index < q_length, index < k_length
    if DROPOUT:
        masks = draw_masks(tl.load(seed_ptr), rows, columns, first_head, drop_threshold)
    for offset in range(HEADS):
        head = first_head + offset
        q_block = load_rows(q_ptr + head * D, rows, row_mask, q_stride, D)
        k_block = load_rows(k_ptr + head * D, columns, column_mask, kv_stride, D)
        v_block = load_rows(v_ptr + head * D, columns, column_mask, kv_stride, D)
        dout_block = load_rows(dout_ptr + head * D, rows, row_mask, H * D, D)
        weight, inverse_sum = _softmax(q_block, k_block, row_mask, column_mask, scale_log2, CAUSAL, PRECISION)
        weight *= inverse_sum[:, None]
        dweight = tl.dot(dout_block, tl.trans(v_block), input_precision=PRECISION)
        dropped_weight = weight
        if DROPOUT:
            kept = is_kept(masks, head)
            dweight = tl.where(kept, dweight * keep_scale, 0.0)
            dropped_weight = tl.where(kept, weight * keep_scale, 0.0)
        dv = tl.dot(tl.trans(dropped_weight.to(dout_block.dtype)), dout_block, input_precision=PRECISION)
        store_rows(dv_ptr + head * D, columns, column_mask, kv_stride, dv, D)
        delta = tl.sum(weight * dweight, 1)
        dscore = (weight * (dweight - delta[:, None]) * scale).to(q_block.dtype)
        dq = tl.dot(dscore, k_block, input_precision=PRECISION)
        store_rows(dq_ptr + head * D, rows, row_mask, q_stride, dq, D)
        dk = tl.dot(tl.trans(dscore), q_block, input_precision=PRECISION)
        store_rows(dk_ptr + head * D, columns, column_mask, kv_stride, dk, D)
