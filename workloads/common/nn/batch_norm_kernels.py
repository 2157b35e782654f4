"""Triton kernels of `batch_norm.py`.

Shapes: C channels, P pixels of all images; maps are [P, C]. A program works on tiles of BLOCK_P pixels and BLOCK_C
channels, or adds BLOCK_PARTS partial sums at a time. With z the sum that enters the ReLU, dz is the masked gradient.

Two rows for each channel go from one kernel to the next: `mean_rstd` [2, C], `scale_shift` [2, C], by which
w x_hat + b = scale x + shift, and `partial_sums` [parts, 2, C]. `gradients` [5, C] are a, b and c of
dx = a dz + b x + c, then dw and db.
"""

from .triton_support import tl, triton

# KIND of the kernels: what is added to the normalized maps.
NO_RESIDUAL: tl.constexpr = tl.constexpr(0)
RESIDUAL: tl.constexpr = tl.constexpr(1)
NORMALIZED_RESIDUAL: tl.constexpr = tl.constexpr(2)


@triton.jit
def sum_values(
    x_ptr, shift_ptr, partial_sums_ptr, num_pixels, num_channels, pixels_per_part,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the sums of x - shift and of its square over a part of the pixels.

    `shift` [C], near the mean, keeps the variance exact where the mean is large.
    """
    part, block = _place(num_channels, BLOCK_C)
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    total, total_square = tl.zeros((BLOCK_P, BLOCK_C), tl.float32), tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    shift = _load(shift_ptr + channel, exists)[None]
    end = tl.minimum(num_pixels, (part + 1) * pixels_per_part)
    for start in range(part * pixels_per_part, end, BLOCK_P):
        offset, mask = _tile(start, end, channel, num_channels, BLOCK_P)
        x = tl.where(mask, _load(x_ptr + offset, mask) - shift, 0.0)
        total += x
        total_square += x * x
    target_ptr = partial_sums_ptr + part * 2 * num_channels + channel
    tl.store(target_ptr, tl.sum(total, 0), mask=exists)
    tl.store(target_ptr + num_channels, tl.sum(total_square, 0), mask=exists)


@triton.jit
def finish_forward(
    partial_sums_ptr, weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, num_batches_ptr, mean_rstd_ptr,
    scale_shift_ptr, num_pixels, num_channels, num_parts, momentum, eps,
    BLOCK_C: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Write mean, rstd, scale and shift of each channel, and update the running statistics as PyTorch does."""
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    total, total_square = _add_parts(partial_sums_ptr, channel, exists, num_channels, num_parts, BLOCK_C, BLOCK_PARTS)
    old_mean, old_variance = _load(running_mean_ptr + channel, exists), _load(running_var_ptr + channel, exists)
    distance = total / num_pixels  # from the running mean, which `sum_values` subtracted
    mean = old_mean + distance
    variance = tl.maximum(total_square / num_pixels - distance * distance, 0.0)
    rstd = tl.rsqrt(variance + eps)
    scale = rstd * _load(weight_ptr + channel, exists)
    tl.store(mean_rstd_ptr + channel, mean, mask=exists)
    tl.store(mean_rstd_ptr + num_channels + channel, rstd, mask=exists)
    tl.store(scale_shift_ptr + channel, scale, mask=exists)
    tl.store(scale_shift_ptr + num_channels + channel, _load(bias_ptr + channel, exists) - mean * scale, mask=exists)
    unbiased = variance * (num_pixels / tl.maximum(num_pixels - 1, 1))
    tl.store(running_mean_ptr + channel, old_mean + momentum * distance, mask=exists)
    tl.store(running_var_ptr + channel, old_variance + momentum * (unbiased - old_variance), mask=exists)
    if tl.program_id(0) == 0:
        tl.store(num_batches_ptr, tl.load(num_batches_ptr) + 1)


@triton.jit
def read_running_statistics(
    weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, scale_shift_ptr, num_channels, eps, BLOCK_C: tl.constexpr
):
    """Write scale and shift of each channel for an evaluation."""
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    scale = tl.rsqrt(_load(running_var_ptr + channel, exists) + eps) * _load(weight_ptr + channel, exists)
    shift = _load(bias_ptr + channel, exists) - _load(running_mean_ptr + channel, exists) * scale
    tl.store(scale_shift_ptr + channel, scale, mask=exists)
    tl.store(scale_shift_ptr + num_channels + channel, shift, mask=exists)


@triton.jit
def apply_forward(
    x_ptr, residual_ptr, y_ptr, positive_ptr, scale_shift_ptr, residual_scale_shift_ptr, num_pixels, num_channels,
    KIND: tl.constexpr, HAS_POSITIVE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write y and, for a backward pass with a residual, a bit for each of its values: whether it is positive."""
    part, block = _place(num_channels, BLOCK_C)
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    offset, mask = _tile(part * BLOCK_P, num_pixels, channel, num_channels, BLOCK_P)
    z = _affine(_load(x_ptr + offset, mask), scale_shift_ptr, channel, num_channels, exists)
    if KIND == RESIDUAL:
        z += _load(residual_ptr + offset, mask)
    if KIND == NORMALIZED_RESIDUAL:
        z += _affine(_load(residual_ptr + offset, mask), residual_scale_shift_ptr, channel, num_channels, exists)
    is_masked = z <= 0  # NaN is not
    tl.store(y_ptr + offset, tl.where(is_masked, 0.0, z).to(y_ptr.dtype.element_ty), mask=mask)
    if HAS_POSITIVE:
        weighted = tl.where(is_masked, 0, 1) << (tl.arange(0, BLOCK_C) % 8)[None]
        packed = tl.sum(tl.reshape(weighted, (BLOCK_P, BLOCK_C // 8, 8)), 2)
        offset, mask = _byte_tile(part * BLOCK_P, num_pixels, block, num_channels, BLOCK_P, BLOCK_C)
        tl.store(positive_ptr + offset, packed.to(tl.uint8), mask=mask)


@triton.jit
def sum_gradients(
    x_ptr, residual_ptr, dy_ptr, other_dy_ptr, positive_ptr, dz_ptr, scale_shift_ptr, mean_rstd_ptr,
    residual_mean_rstd_ptr, partial_sums_ptr, residual_partial_sums_ptr, num_pixels, num_channels, pixels_per_part,
    KIND: tl.constexpr, HAS_OTHER: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the sums of dz and of dz (x - mean) over a part of the pixels.

    With a residual, also dz and, with one that is normalized, the same sums of the residual.
    """
    part, block = _place(num_channels, BLOCK_C)
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    total, product = tl.zeros((BLOCK_P, BLOCK_C), tl.float32), tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    residual_product = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    mean, residual_mean = _load(mean_rstd_ptr + channel, exists), _load(residual_mean_rstd_ptr + channel, exists)
    end = tl.minimum(num_pixels, (part + 1) * pixels_per_part)
    for start in range(part * pixels_per_part, end, BLOCK_P):
        offset, mask = _tile(start, end, channel, num_channels, BLOCK_P)
        x, dz = _load(x_ptr + offset, mask), _load(dy_ptr + offset, mask)
        if HAS_OTHER:
            dz += _load(other_dy_ptr + offset, mask)
        if KIND == NO_RESIDUAL:
            dz = tl.where(_affine(x, scale_shift_ptr, channel, num_channels, exists) <= 0, 0.0, dz)
        else:
            byte_offset, byte_mask = _byte_tile(start, end, block, num_channels, BLOCK_P, BLOCK_C)
            packed = tl.load(positive_ptr + byte_offset, mask=byte_mask, other=0).to(tl.int32)
            positive = (packed[:, :, None] >> tl.arange(0, 8)[None, None]) & 1
            dz = tl.where(tl.reshape(positive, (BLOCK_P, BLOCK_C)) == 0, 0.0, dz)
            rounded = dz.to(dz_ptr.dtype.element_ty)
            tl.store(dz_ptr + offset, rounded, mask=mask)
            dz = rounded.to(tl.float32)
        total += dz
        product += dz * (x - mean[None])
        if KIND == NORMALIZED_RESIDUAL:
            residual_product += dz * (_load(residual_ptr + offset, mask) - residual_mean[None])
    offset = part * 2 * num_channels + channel
    total_of_part = tl.sum(total, 0)
    tl.store(partial_sums_ptr + offset, total_of_part, mask=exists)
    tl.store(partial_sums_ptr + offset + num_channels, tl.sum(product, 0), mask=exists)
    if KIND == NORMALIZED_RESIDUAL:
        tl.store(residual_partial_sums_ptr + offset, total_of_part, mask=exists)
        tl.store(residual_partial_sums_ptr + offset + num_channels, tl.sum(residual_product, 0), mask=exists)


@triton.jit
def finish_backward(
    partial_sums_ptr, weight_ptr, mean_rstd_ptr, gradients_ptr, num_pixels, num_channels, num_parts,
    BLOCK_C: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Write a, b and c of dx = a dz + b x + c = w rstd (dz - mean(dz) - x_hat mean(dz x_hat)), then dw and db."""
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    db, product = _add_parts(partial_sums_ptr, channel, exists, num_channels, num_parts, BLOCK_C, BLOCK_PARTS)
    mean, rstd = _load(mean_rstd_ptr + channel, exists), _load(mean_rstd_ptr + num_channels + channel, exists)
    dw = product * rstd
    a = rstd * _load(weight_ptr + channel, exists)
    b = -a * rstd * dw / num_pixels
    tl.store(gradients_ptr + channel, a, mask=exists)
    tl.store(gradients_ptr + num_channels + channel, b, mask=exists)
    tl.store(gradients_ptr + 2 * num_channels + channel, -a * db / num_pixels - b * mean, mask=exists)
    tl.store(gradients_ptr + 3 * num_channels + channel, dw, mask=exists)
    tl.store(gradients_ptr + 4 * num_channels + channel, db, mask=exists)


@triton.jit
def apply_backward(
    x_ptr, residual_ptr, dz_ptr, dx_ptr, dresidual_ptr, scale_shift_ptr, gradients_ptr, residual_gradients_ptr,
    num_pixels, num_channels, KIND: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x and, if it is normalized, of the residual; without one, mask dz, which is dy, first."""
    part, block = _place(num_channels, BLOCK_C)
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < num_channels
    offset, mask = _tile(part * BLOCK_P, num_pixels, channel, num_channels, BLOCK_P)
    x, dz = _load(x_ptr + offset, mask), _load(dz_ptr + offset, mask)
    if KIND == NO_RESIDUAL:
        dz = tl.where(_affine(x, scale_shift_ptr, channel, num_channels, exists) <= 0, 0.0, dz)
    scaled = dz * _load(gradients_ptr + channel, exists)[None]
    dx = scaled + _affine(x, gradients_ptr + num_channels, channel, num_channels, exists)
    tl.store(dx_ptr + offset, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if KIND == NORMALIZED_RESIDUAL:
        scaled = dz * _load(residual_gradients_ptr + channel, exists)[None]
        residual = _load(residual_ptr + offset, mask)
        dresidual = scaled + _affine(residual, residual_gradients_ptr + num_channels, channel, num_channels, exists)
        tl.store(dresidual_ptr + offset, dresidual.to(dresidual_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _place(num_channels, BLOCK_C: tl.constexpr):
    """Return which of the parts of the pixels is the program's, and its block of channels.

    Neighbors in the order of execution share their pixels, whose channels lie side by side in memory.
    """
    blocks = tl.cdiv(num_channels, BLOCK_C)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks


@triton.jit
def _load(ptr, mask):
    return tl.load(ptr, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _affine(x, scale_shift_ptr, channel, num_channels, exists):
    """Return scale x + shift."""
    scale = _load(scale_shift_ptr + channel, exists)
    return x * scale[None] + _load(scale_shift_ptr + num_channels + channel, exists)[None]


@triton.jit
def _tile(first_pixel, end, channel, num_channels, BLOCK_P: tl.constexpr):
    """Return the offsets of the values of some pixels, and which of them exist."""
    pixel = first_pixel + tl.arange(0, BLOCK_P)
    offset = pixel.to(tl.int64)[:, None] * num_channels + channel[None]
    return offset, (pixel < end)[:, None] & (channel < num_channels)[None]


@triton.jit
def _byte_tile(first_pixel, end, block, num_channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the offsets of the bytes that hold a bit for each value of some pixels, and which of them exist."""
    byte = block * (BLOCK_C // 8) + tl.arange(0, BLOCK_C // 8)
    return _tile(first_pixel, end, byte, num_channels // 8, BLOCK_P)


@triton.jit
def _add_parts(
    partial_sums_ptr, channel, exists, num_channels, num_parts, BLOCK_C: tl.constexpr, BLOCK_PARTS: tl.constexpr
):
    """Return both sums over all parts."""
    part = tl.arange(0, BLOCK_PARTS)
    first, second = tl.zeros((BLOCK_PARTS, BLOCK_C), tl.float32), tl.zeros((BLOCK_PARTS, BLOCK_C), tl.float32)
    for start in range(0, num_parts, BLOCK_PARTS):
        offset = (start + part)[:, None] * 2 * num_channels + channel[None]
        mask = (start + part < num_parts)[:, None] & exists[None]
        first += _load(partial_sums_ptr + offset, mask)
        second += _load(partial_sums_ptr + offset + num_channels, mask)
    return tl.sum(first, 0), tl.sum(second, 0)
