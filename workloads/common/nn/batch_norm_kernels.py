"""Triton kernels of `batch_norm.py`.

Shapes: C channels, P pixels of all images; maps are [P, C]. A program works on tiles of ROWS pixels and CHANNELS
channels, or adds PARTS sums at a time.
"""

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

if triton is not None:
    # KIND of the kernels: what is added to the normalized maps.
    NO_RESIDUAL: tl.constexpr = tl.constexpr(0)
    RESIDUAL: tl.constexpr = tl.constexpr(1)
    NORMALIZED_RESIDUAL: tl.constexpr = tl.constexpr(2)

    @triton.jit
    def _place(channels, CHANNELS: tl.constexpr):
        """Return which of the parts of the pixels is the program's, and its block of channels.

        Neighbors in the order of execution share their pixels, whose channels lie side by side in memory.
        """
        blocks = tl.cdiv(channels, CHANNELS)
        return tl.program_id(0) // blocks, tl.program_id(0) % blocks

    @triton.jit
    def _load(pointer, mask):
        return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)

    @triton.jit
    def _affine(value, factors, channel, channels, exists):
        """Return `value` times the factors of its channels plus their addends."""
        return value * _load(factors + channel, exists)[None] + _load(factors + channels + channel, exists)[None]

    @triton.jit
    def _tile(first_row, end, channel, channels, ROWS: tl.constexpr):
        """Return the offsets of the values of some rows, and which of them exist."""
        row = first_row + tl.arange(0, ROWS)
        return row.to(tl.int64)[:, None] * channels + channel[None], (row < end)[:, None] & (channel < channels)[None]

    @triton.jit
    def sum_values(x, shift, sums, pixels, channels, chunk, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
        """Write the sums of x - shift and of its square over a part of the pixels.

        `shift` [C], near the mean, keeps the variance exact where the mean is large.
        """
        part, block = _place(channels, CHANNELS)
        channel = block * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        total, total_square = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
        origin = _load(shift + channel, exists)[None]
        end = tl.minimum(pixels, (part + 1) * chunk)
        for start in range(part * chunk, end, ROWS):
            offset, mask = _tile(start, end, channel, channels, ROWS)
            value = tl.where(mask, _load(x + offset, mask) - origin, 0.0)
            total += value
            total_square += value * value
        target = sums + part * 2 * channels + channel
        tl.store(target, tl.sum(total, 0), mask=exists)
        tl.store(target + channels, tl.sum(total_square, 0), mask=exists)

    @triton.jit
    def _add_parts(sums, channel, exists, channels, parts, CHANNELS: tl.constexpr, PARTS: tl.constexpr):
        """Return both sums over all parts."""
        number = tl.arange(0, PARTS)
        first, second = tl.zeros((PARTS, CHANNELS), tl.float32), tl.zeros((PARTS, CHANNELS), tl.float32)
        for start in range(0, parts, PARTS):
            offset = (start + number)[:, None] * 2 * channels + channel[None]
            mask = (start + number < parts)[:, None] & exists[None]
            first += _load(sums + offset, mask)
            second += _load(sums + offset + channels, mask)
        return tl.sum(first, 0), tl.sum(second, 0)

    @triton.jit
    def finish_forward(
        sums, weight, bias, running_mean, running_var, batches, statistics, factors, pixels, channels, parts, momentum,
        eps, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """Write mean, 1 / deviation and the factors of x, and update the running statistics as PyTorch does."""
        channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        total, total_square = _add_parts(sums, channel, exists, channels, parts, CHANNELS, PARTS)
        old_mean, old_variance = _load(running_mean + channel, exists), _load(running_var + channel, exists)
        distance = total / pixels  # from the running mean, which `sum_values` subtracted
        mean = old_mean + distance
        variance = tl.maximum(total_square / pixels - distance * distance, 0.0)
        rstd = tl.rsqrt(variance + eps)
        scale = rstd * _load(weight + channel, exists)
        tl.store(statistics + channel, mean, mask=exists)
        tl.store(statistics + channels + channel, rstd, mask=exists)
        tl.store(factors + channel, scale, mask=exists)
        tl.store(factors + channels + channel, _load(bias + channel, exists) - mean * scale, mask=exists)
        unbiased = variance * (pixels / tl.maximum(pixels - 1, 1))
        tl.store(running_mean + channel, old_mean + momentum * distance, mask=exists)
        tl.store(running_var + channel, old_variance + momentum * (unbiased - old_variance), mask=exists)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)

    @triton.jit
    def read_running_statistics(
        weight, bias, running_mean, running_var, factors, channels, eps, CHANNELS: tl.constexpr
    ):  # fmt: skip
        """Write the factor and addend of each channel."""
        channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        scale = tl.rsqrt(_load(running_var + channel, exists) + eps) * _load(weight + channel, exists)
        addend = _load(bias + channel, exists) - _load(running_mean + channel, exists) * scale
        tl.store(factors + channel, scale, mask=exists)
        tl.store(factors + channels + channel, addend, mask=exists)

    @triton.jit
    def finish_backward(
        sums, weight, statistics, result, pixels, channels, parts, CHANNELS: tl.constexpr, PARTS: tl.constexpr
    ):
        """Write the factors of gradient and x and the addend of x's gradient, and the gradients of weight and bias.

        With x' the normalized input and g the masked gradient: dx = w / deviation (g - mean(g) - x' mean(g x')).
        """
        channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        total, product = _add_parts(sums, channel, exists, channels, parts, CHANNELS, PARTS)
        mean, rstd = _load(statistics + channel, exists), _load(statistics + channels + channel, exists)
        product = product * rstd
        scale = rstd * _load(weight + channel, exists)
        slope = -scale * rstd * product / pixels
        tl.store(result + channel, scale, mask=exists)
        tl.store(result + channels + channel, slope, mask=exists)
        tl.store(result + 2 * channels + channel, -scale * total / pixels - slope * mean, mask=exists)
        tl.store(result + 3 * channels + channel, product, mask=exists)
        tl.store(result + 4 * channels + channel, total, mask=exists)

    @triton.jit
    def _bit_tile(first_row, end, block, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
        """Return the offsets of the bytes of the values of some rows, and which of them exist."""
        byte = block * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
        return _tile(first_row, end, byte, channels // 8, ROWS)

    @triton.jit
    def apply_forward(
        x, residual, y, bits, factors, residual_factors, pixels, channels, KIND: tl.constexpr, HAS_BITS: tl.constexpr,
        ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """Write y and, for a backward pass with a residual, which of its values are positive."""
        part, block = _place(channels, CHANNELS)
        channel = block * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        offset, mask = _tile(part * ROWS, pixels, channel, channels, ROWS)
        value = _affine(_load(x + offset, mask), factors, channel, channels, exists)
        if KIND == RESIDUAL:
            value += _load(residual + offset, mask)
        if KIND == NORMALIZED_RESIDUAL:
            value += _affine(_load(residual + offset, mask), residual_factors, channel, channels, exists)
        is_masked = value <= 0  # NaN is not
        tl.store(y + offset, tl.where(is_masked, 0.0, value).to(y.dtype.element_ty), mask=mask)
        if HAS_BITS:
            weighted = tl.where(is_masked, 0, 1) << (tl.arange(0, CHANNELS) % 8)[None]
            packed = tl.sum(tl.reshape(weighted, (ROWS, CHANNELS // 8, 8)), 2)
            offset, mask = _bit_tile(part * ROWS, pixels, block, channels, ROWS, CHANNELS)
            tl.store(bits + offset, packed.to(tl.uint8), mask=mask)

    @triton.jit
    def sum_gradients(
        x, residual, grad, other_grad, bits, masked, factors, statistics, residual_statistics, sums, residual_sums,
        pixels, channels, chunk, KIND: tl.constexpr, HAS_OTHER: tl.constexpr, ROWS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """Write the sums, over a part of the pixels, of the masked gradient and of its product with x minus its mean.

        With a residual, also the masked gradient and, with one that is normalized, the sums with the residual.
        """
        part, block = _place(channels, CHANNELS)
        channel = block * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        total, product = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
        residual_product = tl.zeros((ROWS, CHANNELS), tl.float32)
        mean, residual_mean = _load(statistics + channel, exists), _load(residual_statistics + channel, exists)
        end = tl.minimum(pixels, (part + 1) * chunk)
        for start in range(part * chunk, end, ROWS):
            offset, mask = _tile(start, end, channel, channels, ROWS)
            value, slope = _load(x + offset, mask), _load(grad + offset, mask)
            if HAS_OTHER:
                slope += _load(other_grad + offset, mask)
            if KIND == NO_RESIDUAL:
                slope = tl.where(_affine(value, factors, channel, channels, exists) <= 0, 0.0, slope)
            else:
                byte_offset, byte_mask = _bit_tile(start, end, block, channels, ROWS, CHANNELS)
                packed = tl.load(bits + byte_offset, mask=byte_mask, other=0).to(tl.int32)
                positive = (packed[:, :, None] >> tl.arange(0, 8)[None, None]) & 1
                slope = tl.where(tl.reshape(positive, (ROWS, CHANNELS)) == 0, 0.0, slope)
                rounded = slope.to(masked.dtype.element_ty)
                tl.store(masked + offset, rounded, mask=mask)
                slope = rounded.to(tl.float32)
            total += slope
            product += slope * (value - mean[None])
            if KIND == NORMALIZED_RESIDUAL:
                residual_product += slope * (_load(residual + offset, mask) - residual_mean[None])
        offset = part * 2 * channels + channel
        total_of_part = tl.sum(total, 0)
        tl.store(sums + offset, total_of_part, mask=exists)
        tl.store(sums + offset + channels, tl.sum(product, 0), mask=exists)
        if KIND == NORMALIZED_RESIDUAL:
            tl.store(residual_sums + offset, total_of_part, mask=exists)
            tl.store(residual_sums + offset + channels, tl.sum(residual_product, 0), mask=exists)

    @triton.jit
    def apply_backward(
        x, residual, grad, grad_x, grad_residual, factors, of_norm, of_residual_norm, pixels, channels,
        KIND: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """Write the gradients of x and, if it is normalized, of the residual."""
        part, block = _place(channels, CHANNELS)
        channel = block * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        offset, mask = _tile(part * ROWS, pixels, channel, channels, ROWS)
        value, slope = _load(x + offset, mask), _load(grad + offset, mask)
        if KIND == NO_RESIDUAL:
            slope = tl.where(_affine(value, factors, channel, channels, exists) <= 0, 0.0, slope)
        scaled = slope * _load(of_norm + channel, exists)[None]
        of_x = scaled + _affine(value, of_norm + channels, channel, channels, exists)
        tl.store(grad_x + offset, of_x.to(grad_x.dtype.element_ty), mask=mask)
        if KIND == NORMALIZED_RESIDUAL:
            scaled = slope * _load(of_residual_norm + channel, exists)[None]
            value = _load(residual + offset, mask)
            of_residual = scaled + _affine(value, of_residual_norm + channels, channel, channels, exists)
            tl.store(grad_residual + offset, of_residual.to(grad_residual.dtype.element_ty), mask=mask)
