"""Triton kernels of attention within short packed sentences, each at once.

A program takes HEADS heads of a sentence: it reads each token once, and in the backward pass recomputes the softmax and
writes all gradients. The shapes are those of `kernels.py`; a kernel takes the sentences whose longer side has more than
SHORTER and at most BLOCK tokens.
"""

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

if triton is not None:
    from .kernel_parts import load_rows, random_24_bits, store_rows

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
    def forward(
        q, k, v, out, cu_seqlens_q, cu_seqlens_k, seed, q_stride, kv_stride, scale_log2, drop_threshold, keep_scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, HEADS: tl.constexpr, SHORTER: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Outputs of a sentence."""
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
            q_block = load_rows(q + head * D, rows, row_mask, q_stride, D)
            k_block = load_rows(k + head * D, columns, column_mask, kv_stride, D)
            v_block = load_rows(v + head * D, columns, column_mask, kv_stride, D)
            weight, inverse_sum = _softmax(q_block, k_block, row_mask, column_mask, scale_log2, CAUSAL, PRECISION)
            if DROPOUT:
                kept = random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                weight = tl.where(kept, weight, 0.0)
            output = tl.dot(weight.to(v_block.dtype), v_block, input_precision=PRECISION)
            store_rows(out + head * D, rows, row_mask, H * D, output * (inverse_sum * keep_scale)[:, None], D)

    @triton.jit
    def backward(
        q, k, v, grad_out, grad_q, grad_k, grad_v, cu_seqlens_q, cu_seqlens_k, seed, q_stride, kv_stride, scale_log2,
        drop_threshold, keep_scale, scale,
        CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STOCK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
        PRECISION: tl.constexpr, HEADS: tl.constexpr, SHORTER: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """All gradients of a sentence."""
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
            q_block = load_rows(q + head * D, rows, row_mask, q_stride, D)
            k_block = load_rows(k + head * D, columns, column_mask, kv_stride, D)
            v_block = load_rows(v + head * D, columns, column_mask, kv_stride, D)
            grad_block = load_rows(grad_out + head * D, rows, row_mask, H * D, D)
            weight, inverse_sum = _softmax(q_block, k_block, row_mask, column_mask, scale_log2, CAUSAL, PRECISION)
            weight *= inverse_sum[:, None]
            grad_weight = tl.dot(grad_block, tl.trans(v_block), input_precision=PRECISION)
            dropped_weight = weight
            if DROPOUT:
                kept = random_24_bits(step_seed, head, rows, columns, STOCK) >= drop_threshold
                grad_weight = tl.where(kept, grad_weight * keep_scale, 0.0)
                dropped_weight = tl.where(kept, weight * keep_scale, 0.0)
            v_grad = tl.dot(tl.trans(dropped_weight.to(grad_block.dtype)), grad_block, input_precision=PRECISION)
            store_rows(grad_v + head * D, columns, column_mask, kv_stride, v_grad, D)
            row_product = tl.sum(weight * grad_weight, 1)  # the gradient of the softmax's sum
            grad_score = (weight * (grad_weight - row_product[:, None]) * scale).to(q_block.dtype)
            q_grad = tl.dot(grad_score, k_block, input_precision=PRECISION)
            store_rows(grad_q + head * D, rows, row_mask, q_stride, q_grad, D)
            k_grad = tl.dot(tl.trans(grad_score), q_block, input_precision=PRECISION)
            store_rows(grad_k + head * D, columns, column_mask, kv_stride, k_grad, D)
