"""Triton kernels of attention between packed sentences of any lengths, by tiles.

A tile of queries covers the end of one sentence and the next ones. It is multiplied with the keys from the first to the
last of these sentences, and the scores between different sentences are masked. So all tiles have the same shape,
whatever the lengths. The shapes are those of `kernels.py`; a program takes TILE tokens of its own side and STEP tokens
of the other side at a time.
"""

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

if triton is not None:
    from .kernel_parts import load_rows, random_24_bits, store_rows

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
    def forward(
        q, k, v, out, lse, q_sentences, k_sentences, cu_seqlens_k, seed, tokens, q_stride, kv_stride, scale_log2,
        drop_threshold, keep_scale,
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
        q_tile = load_rows(q + head * D, rows, row_mask, q_stride, D)
        running_max = tl.full((TILE,), -1.0e30, tl.float32)
        weight_sum = tl.zeros((TILE,), tl.float32)
        output = tl.zeros((TILE, D), tl.float32)
        for index in range(start, stop, STEP):
            columns = index + tl.arange(0, STEP)
            column_mask = columns < stop
            k_tile = load_rows(k + head * D, columns, column_mask, kv_stride, D)
            k_sentence = tl.load(k_sentences + columns, mask=column_mask, other=-2)
            score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
            new_max = tl.maximum(running_max, tl.max(tl.where(mask, score, -1.0e30), 1))
            weight = tl.where(mask, tl.exp2(score - new_max[:, None]), 0.0)
            rescale = tl.exp2(running_max - new_max)
            weight_sum = weight_sum * rescale + tl.sum(weight, 1)
            if DROPOUT:
                kept = random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                weight = tl.where(kept, weight, 0.0)
            v_tile = load_rows(v + head * D, columns, column_mask, kv_stride, D)
            output = output * rescale[:, None] + tl.dot(weight.to(v_tile.dtype), v_tile, input_precision=PRECISION)
            running_max = new_max
        weight_sum = tl.where(weight_sum > 0.0, weight_sum, 1.0)
        store_rows(out + head * D, rows, row_mask, H * D, output * (keep_scale / weight_sum)[:, None], D)
        tl.store(lse + rows * H + head, running_max + tl.log2(weight_sum), mask=row_mask)

    @triton.jit
    def backward_q(
        q, k, v, out, grad_out, lse, delta, grad_q, q_sentences, k_sentences, cu_seqlens_k, seed, tokens, q_stride,
        kv_stride, scale_log2, drop_threshold, keep_scale, scale,
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
        q_tile = load_rows(q + head * D, rows, row_mask, q_stride, D)
        grad_tile = load_rows(grad_out + head * D, rows, row_mask, H * D, D)
        out_tile = load_rows(out + head * D, rows, row_mask, H * D, D)
        row_lse = tl.load(lse + rows * H + head, mask=row_mask, other=0.0)
        row_delta = tl.sum(out_tile.to(tl.float32) * grad_tile.to(tl.float32), 1)
        tl.store(delta + rows * H + head, row_delta, mask=row_mask)
        grad_sum = tl.zeros((TILE, D), tl.float32)
        for index in range(start, stop, STEP):
            columns = index + tl.arange(0, STEP)
            column_mask = columns < stop
            k_tile = load_rows(k + head * D, columns, column_mask, kv_stride, D)
            k_sentence = tl.load(k_sentences + columns, mask=column_mask, other=-2)
            score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
            weight = tl.where(mask, tl.exp2(score - row_lse[:, None]), 0.0)
            v_tile = load_rows(v + head * D, columns, column_mask, kv_stride, D)
            grad_weight = tl.dot(grad_tile, tl.trans(v_tile), input_precision=PRECISION)
            if DROPOUT:
                kept = random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                grad_weight = tl.where(kept, grad_weight * keep_scale, 0.0)
            grad_score = weight * (grad_weight - row_delta[:, None]) * scale
            grad_sum += tl.dot(grad_score.to(k_tile.dtype), k_tile, input_precision=PRECISION)
        store_rows(grad_q + head * D, rows, row_mask, q_stride, grad_sum, D)

    @triton.jit
    def backward_kv(
        q, k, v, grad_out, lse, delta, grad_k, grad_v, q_sentences, k_sentences, cu_seqlens_q, seed, tokens, q_stride,
        kv_stride, scale_log2, drop_threshold, keep_scale, scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        """Gradients of a tile of keys and values; `delta` comes from `backward_q`."""
        head, first = tl.program_id(1), tl.program_id(0) * TILE
        columns = first + tl.arange(0, TILE)
        column_mask = columns < tokens
        k_sentence = tl.load(k_sentences + columns, mask=column_mask, other=-1)
        start, stop = _other_range(k_sentences, cu_seqlens_q, first, tokens, TILE)
        if CAUSAL:
            start = tl.maximum(start, first)
        if DROPOUT:
            step_seed = tl.load(seed)
        k_tile = load_rows(k + head * D, columns, column_mask, kv_stride, D)
        v_tile = load_rows(v + head * D, columns, column_mask, kv_stride, D)
        k_grad_sum = tl.zeros((TILE, D), tl.float32)
        v_grad_sum = tl.zeros((TILE, D), tl.float32)
        for index in range(start, stop, STEP):
            rows = index + tl.arange(0, STEP)
            row_mask = rows < stop
            q_tile = load_rows(q + head * D, rows, row_mask, q_stride, D)
            grad_tile = load_rows(grad_out + head * D, rows, row_mask, H * D, D)
            row_lse = tl.load(lse + rows * H + head, mask=row_mask, other=0.0)
            row_delta = tl.load(delta + rows * H + head, mask=row_mask, other=0.0)
            q_sentence = tl.load(q_sentences + rows, mask=row_mask, other=-2)
            score, mask = _scores(q_tile, k_tile, q_sentence, k_sentence, rows, columns, scale_log2, CAUSAL, PRECISION)
            weight = tl.where(mask, tl.exp2(score - row_lse[:, None]), 0.0)
            grad_weight = tl.dot(grad_tile, tl.trans(v_tile), input_precision=PRECISION)
            dropped_weight = weight
            if DROPOUT:
                kept = random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                grad_weight = tl.where(kept, grad_weight * keep_scale, 0.0)
                dropped_weight = tl.where(kept, weight * keep_scale, 0.0)
            v_grad_sum += tl.dot(
                tl.trans(dropped_weight).to(grad_tile.dtype), grad_tile, input_precision=PRECISION
            )  # fmt: skip
            grad_score = weight * (grad_weight - row_delta[:, None]) * scale
            k_grad_sum += tl.dot(tl.trans(grad_score).to(q_tile.dtype), q_tile, input_precision=PRECISION)
        store_rows(grad_k + head * D, columns, column_mask, kv_stride, k_grad_sum, D)
        store_rows(grad_v + head * D, columns, column_mask, kv_stride, v_grad_sum, D)
