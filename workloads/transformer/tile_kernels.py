"""Triton kernels of attention between packed sentences of any lengths, by tiles.

A tile of queries covers the end of one sentence and the next ones. It is multiplied with the keys from the first to the
last of these sentences, and the scores between different sentences are masked. So all tiles have the same shape,
whatever the lengths. The shapes are those of `kernels.py`; a program takes TILE tokens of its own side and STEP tokens
of the other side at a time. The softmax is computed online and again in the backward pass (FlashAttention-2, Dao 2023,
algorithms 1 and 2); sums over queries have a kernel of their own instead of atomic additions.

They serve sentences of more than 64 tokens, which `transformer/mini` (up to 128) and WMT's test set have: PyTorch's
attention of padded sentences would compute 69,632 positions for the 4,096 tokens of a batch of `transformer/mini`.
"""

from ..common.nn.triton_support import tl, triton
from .kernel_parts import draw_masks, is_kept, load_rows, row_pointers, store_rows


@triton.jit
def _other_range(sentences_ptr, other_cu_seqlens_ptr, first, num_tokens, TILE: tl.constexpr):
    """Return the range of the other side's tokens for the sentences of the tile that begins at `first`."""
    start = tl.load(other_cu_seqlens_ptr + tl.load(sentences_ptr + first))
    stop = tl.load(other_cu_seqlens_ptr + tl.load(sentences_ptr + tl.minimum(first + TILE, num_tokens) - 1) + 1)
    return start, stop


@triton.jit
def _scores(q, k, q_sentence, k_sentence, rows, columns, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Return the scores of a tile and the mask of those within a sentence and, with CAUSAL, not later."""
    mask = q_sentence[:, None] == k_sentence[None]
    if CAUSAL:
        mask = mask & (columns[None] <= rows[:, None])
    return tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale, mask


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_sentences_ptr, k_sentences_ptr, cu_seqlens_k_ptr, seed_ptr, num_tokens,
    q_stride, kv_stride, scale_log2, drop_threshold, keep_scale,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Outputs and base-2 log-sum-exp of a tile of queries, with an online softmax over the keys."""
    head, first = tl.program_id(1), tl.program_id(0) * TILE
    rows = first + tl.arange(0, TILE)
    row_mask = rows < num_tokens
    q_sentence = tl.load(q_sentences_ptr + rows, mask=row_mask, other=-1)
    start, stop = _other_range(q_sentences_ptr, cu_seqlens_k_ptr, first, num_tokens, TILE)
    if CAUSAL:
        stop = tl.minimum(stop, first + TILE)
    if DROPOUT:
        step_seed = tl.load(seed_ptr)
    q_tile = load_rows(q_ptr + head * D, rows, row_mask, q_stride, D)
    running_max = tl.full((TILE,), -1.0e30, tl.float32)
    weight_sum = tl.zeros((TILE,), tl.float32)
    output = tl.zeros((TILE, D), tl.float32)
    for index in range(start, stop, STEP):
        columns = index + tl.arange(0, STEP)
        column_mask = columns < stop
        k_tile = load_rows(k_ptr + head * D, columns, column_mask, kv_stride, D)
        k_sentence = tl.load(k_sentences_ptr + columns, mask=column_mask, other=-2)
        score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
        new_max = tl.maximum(running_max, tl.max(tl.where(mask, score, -1.0e30), 1))
        weight = tl.where(mask, tl.exp2(score - new_max[:, None]), 0.0)
        rescale = tl.exp2(running_max - new_max)
        weight_sum = weight_sum * rescale + tl.sum(weight, 1)
        if DROPOUT:
            kept = is_kept(draw_masks(step_seed, rows, columns, head, drop_threshold), head)
            weight = tl.where(kept, weight, 0.0)
        v_tile = load_rows(v_ptr + head * D, columns, column_mask, kv_stride, D)
        output = output * rescale[:, None] + tl.dot(weight.to(v_tile.dtype), v_tile, input_precision=PRECISION)
        running_max = new_max
    weight_sum = tl.where(weight_sum > 0.0, weight_sum, 1.0)
    store_rows(out_ptr + head * D, rows, row_mask, H * D, output * (keep_scale / weight_sum)[:, None], D)
    tl.store(row_pointers(lse_ptr + head, rows, H), running_max + tl.log2(weight_sum), mask=row_mask)


@triton.jit
def backward_q(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, q_sentences_ptr, k_sentences_ptr,
    cu_seqlens_k_ptr, seed_ptr, num_tokens, q_stride, kv_stride, scale_log2, drop_threshold, keep_scale, scale,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """dQ = dS K of a tile of queries; also stores `delta` = rowsum(O dO), which equals rowsum(P dP)."""
    head, first = tl.program_id(1), tl.program_id(0) * TILE
    rows = first + tl.arange(0, TILE)
    row_mask = rows < num_tokens
    q_sentence = tl.load(q_sentences_ptr + rows, mask=row_mask, other=-1)
    start, stop = _other_range(q_sentences_ptr, cu_seqlens_k_ptr, first, num_tokens, TILE)
    if CAUSAL:
        stop = tl.minimum(stop, first + TILE)
    if DROPOUT:
        step_seed = tl.load(seed_ptr)
    q_tile = load_rows(q_ptr + head * D, rows, row_mask, q_stride, D)
    dout_tile = load_rows(dout_ptr + head * D, rows, row_mask, H * D, D)
    out_tile = load_rows(out_ptr + head * D, rows, row_mask, H * D, D)
    row_lse = tl.load(row_pointers(lse_ptr + head, rows, H), mask=row_mask, other=0.0)
    row_delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    tl.store(row_pointers(delta_ptr + head, rows, H), row_delta, mask=row_mask)
    dq_sum = tl.zeros((TILE, D), tl.float32)
    for index in range(start, stop, STEP):
        columns = index + tl.arange(0, STEP)
        column_mask = columns < stop
        k_tile = load_rows(k_ptr + head * D, columns, column_mask, kv_stride, D)
        k_sentence = tl.load(k_sentences_ptr + columns, mask=column_mask, other=-2)
        score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
        weight = tl.where(mask, tl.exp2(score - row_lse[:, None]), 0.0)
        v_tile = load_rows(v_ptr + head * D, columns, column_mask, kv_stride, D)
        dweight = tl.dot(dout_tile, tl.trans(v_tile), input_precision=PRECISION)
        if DROPOUT:
            kept = is_kept(draw_masks(step_seed, rows, columns, head, drop_threshold), head)
            dweight = tl.where(kept, dweight * keep_scale, 0.0)
        dscore = weight * (dweight - row_delta[:, None]) * scale
        dq_sum += tl.dot(dscore.to(k_tile.dtype), k_tile, input_precision=PRECISION)
    store_rows(dq_ptr + head * D, rows, row_mask, q_stride, dq_sum, D)


@triton.jit
def backward_kv(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, q_sentences_ptr, k_sentences_ptr,
    cu_seqlens_q_ptr, seed_ptr, num_tokens, q_stride, kv_stride, scale_log2, drop_threshold, keep_scale, scale,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """dV = P'^T dO and dK = dS^T Q of a tile of keys and values; `delta` comes from `backward_q`."""
    head, first = tl.program_id(1), tl.program_id(0) * TILE
    columns = first + tl.arange(0, TILE)
    column_mask = columns < num_tokens
    k_sentence = tl.load(k_sentences_ptr + columns, mask=column_mask, other=-1)
    start, stop = _other_range(k_sentences_ptr, cu_seqlens_q_ptr, first, num_tokens, TILE)
    if CAUSAL:
        start = tl.maximum(start, first)
    if DROPOUT:
        step_seed = tl.load(seed_ptr)
    k_tile = load_rows(k_ptr + head * D, columns, column_mask, kv_stride, D)
    v_tile = load_rows(v_ptr + head * D, columns, column_mask, kv_stride, D)
    dk_sum = tl.zeros((TILE, D), tl.float32)
    dv_sum = tl.zeros((TILE, D), tl.float32)
    for index in range(start, stop, STEP):
        rows = index + tl.arange(0, STEP)
        row_mask = rows < stop
        q_tile = load_rows(q_ptr + head * D, rows, row_mask, q_stride, D)
        dout_tile = load_rows(dout_ptr + head * D, rows, row_mask, H * D, D)
        row_lse = tl.load(row_pointers(lse_ptr + head, rows, H), mask=row_mask, other=0.0)
        row_delta = tl.load(row_pointers(delta_ptr + head, rows, H), mask=row_mask, other=0.0)
        q_sentence = tl.load(q_sentences_ptr + rows, mask=row_mask, other=-2)
        score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
        weight = tl.where(mask, tl.exp2(score - row_lse[:, None]), 0.0)
        dweight = tl.dot(dout_tile, tl.trans(v_tile), input_precision=PRECISION)
        dropped_weight = weight
        if DROPOUT:
            kept = is_kept(draw_masks(step_seed, rows, columns, head, drop_threshold), head)
            dweight = tl.where(kept, dweight * keep_scale, 0.0)
            dropped_weight = tl.where(kept, weight * keep_scale, 0.0)
        dv_sum += tl.dot(tl.trans(dropped_weight).to(dout_tile.dtype), dout_tile, input_precision=PRECISION)
        dscore = weight * (dweight - row_delta[:, None]) * scale
        dk_sum += tl.dot(tl.trans(dscore).to(q_tile.dtype), q_tile, input_precision=PRECISION)
    store_rows(dk_ptr + head * D, columns, column_mask, kv_stride, dk_sum, D)
    store_rows(dv_ptr + head * D, columns, column_mask, kv_stride, dv_sum, D)
