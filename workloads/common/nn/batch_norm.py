"""Batch norm in training with the residual sum and the ReLU after it, by Triton kernels, for models not compiled.

These operations are limited by memory, so that kernels share each pass over the maps. The forward pass reads them for
their sums, then reads, normalizes, adds and writes them. The backward pass adds the gradients of the next branch and of
the next shortcut, masks and sums them, and writes the gradients of the maps in a second pass. Maps are channels-last.

Shapes: N images, C channels, P = N * H * W pixels. Sums are accumulated in fp32 and in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

_ROWS, _CHANNELS = 32, 64  # pixels and channels of a program, at a time
_PROGRAMS, _MIN_TILES = 1024, 4  # programs that share the sums, and the least that each of them reads
_PARTS, _FINISHED_CHANNELS = 128, 16  # sums that are added at a time, and channels of a program that adds them
_NO_RESIDUAL, _RESIDUAL, _NORMALIZED_RESIDUAL = 0, 1, 2  # KIND of the kernels


def batch_norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return ReLU(norm(x)) of maps [N, C, H, W]."""
    if _is_fusible(norm, x):
        fused: Tensor = _BatchNormReLU.apply(x, None, norm.weight, norm.bias, None, None, norm, None)[0]
        return fused
    return F.relu(norm(x))


def residual_batch_norm_relu(
    norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor, shortcut_norm: nn.BatchNorm2d | None = None
) -> tuple[Tensor, Tensor]:
    """Return ReLU(norm(x) + shortcut), or + shortcut_norm(shortcut), twice: for the next branch and the next shortcut.

    The backward pass then receives both gradients and adds them itself.
    """
    if _is_fusible(norm, x):
        of_shortcut = (None, None) if shortcut_norm is None else (shortcut_norm.weight, shortcut_norm.bias)
        branch, next_shortcut = _BatchNormReLU.apply(
            x, shortcut, norm.weight, norm.bias, *of_shortcut, norm, shortcut_norm
        )
        return branch, next_shortcut
    y = F.relu(norm(x) + (shortcut if shortcut_norm is None else shortcut_norm(shortcut)))
    return y, y


def project(downsample: nn.Sequential | None, x: Tensor) -> tuple[Tensor] | tuple[Tensor, nn.BatchNorm2d]:
    """Return the shortcut of a residual block: x or, if its size changes, its convolution and the norm that follows."""
    if not downsample:
        return (x,)
    convolution, norm = downsample
    assert isinstance(norm, nn.BatchNorm2d)
    return convolution(x), norm


def _is_fusible(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    return (
        norm.training
        and not torch.compiler.is_compiling()
        and triton_available(x)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] % 8 == 0  # eight channels share a byte of the ReLU's mask
    )


class _BatchNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, residual_weight: Tensor | None,
        residual_bias: Tensor | None, norm: nn.BatchNorm2d, residual_norm: nn.BatchNorm2d | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        statistics, factors = _measure(norm, x)
        residual_statistics, residual_factors, bits = statistics, factors, x
        kind = _NO_RESIDUAL
        if residual is None:
            residual = x
        else:
            kind = _RESIDUAL
            residual = residual.contiguous(memory_format=torch.channels_last)
            bits = torch.empty(x.numel() // 8, dtype=torch.uint8, device=x.device)
        if residual_norm is not None:
            kind = _NORMALIZED_RESIDUAL
            residual_statistics, residual_factors = _measure(residual_norm, residual)
        y = torch.empty_like(x)
        _apply_forward[_grid(x)](
            x, residual, y, bits, factors, residual_factors, *_sizes(x), kind, _ROWS, _CHANNELS
        )  # fmt: skip
        ctx.kind = kind
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            x, residual if kind == _NORMALIZED_RESIDUAL else None, None if kind == _NO_RESIDUAL else bits, weight,
            residual_weight, statistics, residual_statistics, factors,
        )  # fmt: skip
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, bits, weight, residual_weight, statistics, residual_statistics, factors = ctx.saved_tensors
        given = [grad.contiguous(memory_format=torch.channels_last) for grad in grads if grad is not None]
        kind, (parts, blocks) = ctx.kind, _parts(x)
        sums, residual_sums = torch.empty(2, parts, 2, x.shape[1], device=x.device)
        # Without a residual the mask is that of the normalized maps, which are computed again.
        masked = given[0] if kind == _NO_RESIDUAL else torch.empty_like(x)
        residual = x if residual is None else residual
        _sum_gradients[(parts, blocks)](
            x, residual, given[0], given[-1], x if bits is None else bits, masked, factors, statistics,
            residual_statistics, sums, residual_sums, *_sizes(x), _chunk(x), kind, len(given) == 2, _ROWS, _CHANNELS,
        )  # fmt: skip
        grad_x, of_norm = torch.empty_like(x), _finish_gradients(sums, weight, statistics, x)
        grad_residual, of_residual_norm = masked, of_norm
        if kind == _NORMALIZED_RESIDUAL:
            grad_residual = torch.empty_like(x)
            of_residual_norm = _finish_gradients(residual_sums, residual_weight, residual_statistics, x)
        _apply_backward[_grid(x)](
            x, residual, masked, grad_x, grad_residual, factors, of_norm, of_residual_norm, *_sizes(x), kind, _ROWS,
            _CHANNELS,
        )  # fmt: skip
        # The last two rows are the gradients of weight and bias.
        has_norm = kind == _NORMALIZED_RESIDUAL
        of_parameters = *of_norm[3:], *(of_residual_norm[3:] if has_norm else (None, None))
        return grad_x, None if kind == _NO_RESIDUAL else grad_residual, *of_parameters, None, None


def _sizes(x: Tensor) -> tuple[int, int]:
    """Return pixels and channels."""
    return x.numel() // x.shape[1], x.shape[1]


def _grid(x: Tensor) -> tuple[int, int]:
    pixels, channels = _sizes(x)
    return triton.cdiv(pixels, _ROWS), triton.cdiv(channels, _CHANNELS)


def _parts(x: Tensor) -> tuple[int, int]:
    """Return how many programs share the pixels of a sum, and how many its channels."""
    tiles, blocks = _grid(x)
    return max(1, min(tiles // _MIN_TILES, _PROGRAMS // blocks)), blocks


def _chunk(x: Tensor) -> int:
    """Return the pixels of a program that sums."""
    return triton.cdiv(_sizes(x)[0], _parts(x)[0])


def _measure(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the statistics of x, mean and 1 / deviation, and the factor and addend that normalize it: [2, C] each.

    Updates the running statistics as PyTorch does.
    """
    (parts, blocks), channels = _parts(x), x.shape[1]
    sums = torch.empty(parts, 2, channels, device=x.device)
    _sum_values[(parts, blocks)](x, sums, *_sizes(x), _chunk(x), _ROWS, _CHANNELS)
    statistics, factors = torch.empty(2, 2, channels, device=x.device)
    _finish_forward[(triton.cdiv(channels, _FINISHED_CHANNELS),)](
        sums, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked, statistics,
        factors, *_sizes(x), parts, norm.momentum, norm.eps, _FINISHED_CHANNELS, _PARTS,
    )  # fmt: skip
    return statistics, factors


def _finish_gradients(sums: Tensor, weight: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
    """Return [5, C]: factors of gradient and x and the addend of x's gradient, then gradients of weight and bias."""
    result = torch.empty(5, x.shape[1], device=x.device)
    _finish_backward[(triton.cdiv(x.shape[1], _FINISHED_CHANNELS),)](
        sums, weight, statistics, result, *_sizes(x), len(sums), _FINISHED_CHANNELS, _PARTS
    )
    return result


if triton is not None:

    @triton.jit
    def _load(pointer, mask):
        return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)

    @triton.jit
    def _affine(value, factors, channel, channels, exists):
        """Return `value` times the factors of its channels plus their addends."""
        return value * _load(factors + channel, exists)[None] + _load(factors + channels + channel, exists)[None]

    @triton.jit
    def _sum_values(x, sums, pixels, channels, chunk, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
        """Write the sums of x and x^2 of a part of the pixels."""
        part, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        exists, row = channel < channels, tl.arange(0, ROWS)
        total, total_square = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
        end = tl.minimum(pixels, (part + 1) * chunk)
        for start in range(part * chunk, end, ROWS):
            offset = (start + row).to(tl.int64)[:, None] * channels + channel[None]
            value = _load(x + offset, (start + row < end)[:, None] & exists[None])
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
    def _finish_forward(
        sums, weight, bias, running_mean, running_var, batches, statistics, factors, pixels, channels, parts, momentum,
        eps, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """Write mean, 1 / deviation and the factors of x, and update the running statistics as PyTorch does."""
        channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        total, total_square = _add_parts(sums, channel, exists, channels, parts, CHANNELS, PARTS)
        mean = total / pixels
        variance = tl.maximum(total_square / pixels - mean * mean, 0.0)
        rstd = tl.rsqrt(variance + eps)
        scale = rstd * _load(weight + channel, exists)
        tl.store(statistics + channel, mean, mask=exists)
        tl.store(statistics + channels + channel, rstd, mask=exists)
        tl.store(factors + channel, scale, mask=exists)
        tl.store(factors + channels + channel, _load(bias + channel, exists) - mean * scale, mask=exists)
        old_mean, old_variance = _load(running_mean + channel, exists), _load(running_var + channel, exists)
        unbiased = variance * (pixels / tl.maximum(pixels - 1, 1))
        tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), mask=exists)
        tl.store(running_var + channel, old_variance + momentum * (unbiased - old_variance), mask=exists)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)

    @triton.jit
    def _finish_backward(
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
    def _tile(first_row, end, channel, channels, ROWS: tl.constexpr):
        """Return the offsets of the values of some rows, and which of them exist."""
        row = first_row + tl.arange(0, ROWS)
        return row.to(tl.int64)[:, None] * channels + channel[None], (row < end)[:, None] & (channel < channels)[None]

    @triton.jit
    def _bit_tile(first_row, end, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
        """Return the offsets of the bytes of the values of some rows, and which of them exist."""
        byte = tl.program_id(1) * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
        return _tile(first_row, end, byte, channels // 8, ROWS)

    @triton.jit
    def _apply_forward(
        x, residual, y, bits, factors, residual_factors, pixels, channels, KIND: tl.constexpr, ROWS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """Write y and, with a residual, which of its values are positive."""
        first_row = tl.program_id(0) * ROWS
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        offset, mask = _tile(first_row, pixels, channel, channels, ROWS)
        value = _affine(_load(x + offset, mask), factors, channel, channels, exists)
        if KIND == 1:
            value += _load(residual + offset, mask)
        if KIND == 2:
            value += _affine(_load(residual + offset, mask), residual_factors, channel, channels, exists)
        is_negative = value <= 0  # NaN is not
        tl.store(y + offset, tl.where(is_negative, 0.0, value).to(y.dtype.element_ty), mask=mask)
        if KIND != 0:
            weighted = tl.where(is_negative, 0, 1) << (tl.arange(0, CHANNELS) % 8)[None]
            packed = tl.sum(tl.reshape(weighted, (ROWS, CHANNELS // 8, 8)), 2)
            offset, mask = _bit_tile(first_row, pixels, channels, ROWS, CHANNELS)
            tl.store(bits + offset, packed.to(tl.uint8), mask=mask)

    @triton.jit
    def _sum_gradients(
        x, residual, grad, other_grad, bits, masked, factors, statistics, residual_statistics, sums, residual_sums,
        pixels, channels, chunk, KIND: tl.constexpr, HAS_OTHER: tl.constexpr, ROWS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """Write the sums, over a part of the pixels, of the masked gradient and of its product with x minus its mean.

        With a residual, also the masked gradient and, with one that is normalized, the sums with the residual.
        """
        part, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
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
            if KIND == 0:
                slope = tl.where(_affine(value, factors, channel, channels, exists) <= 0, 0.0, slope)
            else:
                byte_offset, byte_mask = _bit_tile(start, end, channels, ROWS, CHANNELS)
                packed = tl.load(bits + byte_offset, mask=byte_mask, other=0).to(tl.int32)
                positive = (packed[:, :, None] >> tl.arange(0, 8)[None, None]) & 1
                slope = tl.where(tl.reshape(positive, (ROWS, CHANNELS)) == 0, 0.0, slope)
                rounded = slope.to(masked.dtype.element_ty)
                tl.store(masked + offset, rounded, mask=mask)
                slope = rounded.to(tl.float32)
            total += slope
            product += slope * (value - mean[None])
            if KIND == 2:
                residual_product += slope * (_load(residual + offset, mask) - residual_mean[None])
        offset = part * 2 * channels + channel
        total_of_part = tl.sum(total, 0)
        tl.store(sums + offset, total_of_part, mask=exists)
        tl.store(sums + offset + channels, tl.sum(product, 0), mask=exists)
        if KIND == 2:
            tl.store(residual_sums + offset, total_of_part, mask=exists)
            tl.store(residual_sums + offset + channels, tl.sum(residual_product, 0), mask=exists)

    @triton.jit
    def _apply_backward(
        x, residual, grad, grad_x, grad_residual, factors, of_norm, of_residual_norm, pixels, channels,
        KIND: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """Write the gradients of x and, if it is normalized, of the residual."""
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        offset, mask = _tile(tl.program_id(0) * ROWS, pixels, channel, channels, ROWS)
        value, slope = _load(x + offset, mask), _load(grad + offset, mask)
        if KIND == 0:
            slope = tl.where(_affine(value, factors, channel, channels, exists) <= 0, 0.0, slope)
        scaled = slope * _load(of_norm + channel, exists)[None]
        of_x = scaled + _affine(value, of_norm + channels, channel, channels, exists)
        tl.store(grad_x + offset, of_x.to(grad_x.dtype.element_ty), mask=mask)
        if KIND == 2:
            scaled = slope * _load(of_residual_norm + channel, exists)[None]
            value = _load(residual + offset, mask)
            of_residual = scaled + _affine(value, of_residual_norm + channels, channel, channels, exists)
            tl.store(grad_residual + offset, of_residual.to(grad_residual.dtype.element_ty), mask=mask)
