"""Batch norm in training with the residual sum and the ReLU after it, by Triton kernels, for models not compiled.

PyTorch's operations write and read each of these intermediate results. Maps are channels-last.

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
_PROGRAMS = 512  # that share the sums: several on each multiprocessor
_PARTS = 16  # that are summed at a time


def batch_norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """Return ReLU(norm(x) + residual) of maps [N, C, H, W]; without `relu`, the sum itself."""
    is_fusible = (
        norm.training
        and not torch.compiler.is_compiling()
        and triton_available(x)
        and x.is_contiguous(memory_format=torch.channels_last)
    )
    if is_fusible:
        norm_tensors = norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked
        fused: Tensor = _BatchNorm.apply(x, residual, *norm_tensors, norm.momentum, norm.eps, relu)
        return fused
    y: Tensor = norm(x)
    y = y if residual is None else y + residual
    return F.relu(y) if relu else y


def shortcut(downsample: nn.Sequential | None, x: Tensor) -> Tensor:
    """Return x, or that of the convolution and batch norm of a residual block whose size changes."""
    if not downsample:
        return x
    convolution, norm = downsample
    assert isinstance(norm, nn.BatchNorm2d)
    return batch_norm_relu(norm, convolution(x), relu=False)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor,
        running_var: Tensor, batches: Tensor, momentum: float, eps: float, relu: bool,
    ) -> Tensor:  # fmt: skip
        has_residual = residual is not None
        addend = residual.contiguous(memory_format=torch.channels_last) if residual is not None else x
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        sums, y = _sums(x, x, x), torch.empty_like(x)
        statistics, factors = torch.empty(2, 2, channels, device=x.device)
        _finish_forward[(triton.cdiv(channels, _CHANNELS),)](
            sums, weight, bias, running_mean, running_var, batches, statistics, factors, pixels, channels, len(sums),
            momentum, eps, _CHANNELS, _PARTS,
        )  # fmt: skip
        _apply_forward[_grid(x)](x, addend, y, factors, pixels, channels, has_residual, relu, _ROWS, _CHANNELS)
        ctx.relu, ctx.has_residual = relu, has_residual
        ctx.save_for_backward(x, y if relu else None, weight, statistics)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, statistics = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        pixels, channels = x.numel() // x.shape[1], x.shape[1]
        y = x if y is None else y
        sums = _sums(x, grad, y, statistics, relu=ctx.relu)
        grad_x, (grad_weight, grad_bias) = torch.empty_like(x), torch.empty(2, channels, device=x.device)
        factors = torch.empty(3, channels, device=x.device)
        _finish_backward[(triton.cdiv(channels, _CHANNELS),)](
            sums, weight, statistics, grad_weight, grad_bias, factors, pixels, channels, len(sums), _CHANNELS, _PARTS
        )
        # Without a ReLU the gradient of the residual is that of the sum.
        writes_residual = ctx.has_residual and ctx.relu
        grad_residual = torch.empty_like(x) if writes_residual else grad
        _apply_backward[_grid(x)](
            x, y, grad, grad_x, grad_residual, factors, pixels, channels, writes_residual, ctx.relu, _ROWS, _CHANNELS
        )
        return grad_x, grad_residual if ctx.has_residual else None, grad_weight, grad_bias, *[None] * 6


def _grid(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(x.numel() // x.shape[1], _ROWS), triton.cdiv(x.shape[1], _CHANNELS)


def _sums(x: Tensor, grad: Tensor, y: Tensor, statistics: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Return float32 [parts, 2, C]: sums of x and x^2 or, given `statistics`, those of the backward pass.

    These are of the gradient, masked where y is 0 if `relu`, and of its product with x minus its mean.
    """
    pixels, channels = x.numel() // x.shape[1], x.shape[1]
    tiles, blocks = _grid(x)
    parts = max(1, min(tiles, _PROGRAMS // blocks))
    sums = torch.empty(parts, 2, channels, device=x.device)
    is_backward = statistics is not None
    _sum_pixels[(parts, blocks)](
        x, grad, y, sums if statistics is None else statistics, sums, pixels, channels, triton.cdiv(pixels, parts),
        is_backward, relu, _ROWS, _CHANNELS,
    )  # fmt: skip
    return sums


if triton is not None:

    @triton.jit
    def _masked(grad, y, offset, mask, RELU: tl.constexpr):
        """Return the gradient of the sum before the ReLU, whose result is y."""
        slope = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            slope = tl.where(tl.load(y + offset, mask=mask, other=0.0).to(tl.float32) > 0, slope, 0.0)
        return slope

    @triton.jit
    def _sum_pixels(
        x, grad, y, statistics, sums, pixels, channels, chunk, BACKWARD: tl.constexpr, RELU: tl.constexpr,
        ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        part, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        exists, row = channel < channels, tl.arange(0, ROWS)
        first_sum, second_sum = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
        end = tl.minimum(pixels, (part + 1) * chunk)
        mean = tl.zeros((CHANNELS,), tl.float32)
        if BACKWARD:
            mean = tl.load(statistics + channel, mask=exists, other=0.0)
        for start in range(part * chunk, end, ROWS):
            offset = (start + row).to(tl.int64)[:, None] * channels + channel[None]
            mask = (start + row < end)[:, None] & exists[None]
            value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
            if BACKWARD:
                slope = _masked(grad, y, offset, mask, RELU)
                first_sum += slope
                second_sum += slope * (value - mean[None])
            else:
                first_sum += value
                second_sum += value * value
        target = sums + part * 2 * channels + channel
        tl.store(target, tl.sum(first_sum, 0), mask=exists)
        tl.store(target + channels, tl.sum(second_sum, 0), mask=exists)

    @triton.jit
    def _add_parts(sums, channel, exists, channels, parts, CHANNELS: tl.constexpr, PARTS: tl.constexpr):
        """Return both sums over all parts."""
        number = tl.arange(0, PARTS)
        first, second = tl.zeros((PARTS, CHANNELS), tl.float32), tl.zeros((PARTS, CHANNELS), tl.float32)
        for start in range(0, parts, PARTS):
            offset = (start + number)[:, None] * 2 * channels + channel[None]
            mask = (start + number < parts)[:, None] & exists[None]
            first += tl.load(sums + offset, mask=mask, other=0.0)
            second += tl.load(sums + offset + channels, mask=mask, other=0.0)
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
        scale = rstd * tl.load(weight + channel, mask=exists, other=0.0)
        tl.store(statistics + channel, mean, mask=exists)
        tl.store(statistics + channels + channel, rstd, mask=exists)
        tl.store(factors + channel, scale, mask=exists)
        tl.store(
            factors + channels + channel, tl.load(bias + channel, mask=exists, other=0.0) - mean * scale, mask=exists
        )
        old_mean = tl.load(running_mean + channel, mask=exists, other=0.0)
        old_variance = tl.load(running_var + channel, mask=exists, other=0.0)
        unbiased = variance * (pixels / tl.maximum(pixels - 1, 1))
        tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), mask=exists)
        tl.store(running_var + channel, old_variance + momentum * (unbiased - old_variance), mask=exists)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)

    @triton.jit
    def _finish_backward(
        sums, weight, statistics, grad_weight, grad_bias, factors, pixels, channels, parts,
        CHANNELS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """Write the gradients of weight and bias, and the factors of gradient and x, and the addend, of x's gradient.

        With x' the normalized input and g the masked gradient: dx = w / deviation (g - mean(g) - x' mean(g x')).
        """
        channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        total, product = _add_parts(sums, channel, exists, channels, parts, CHANNELS, PARTS)
        mean = tl.load(statistics + channel, mask=exists, other=0.0)
        rstd = tl.load(statistics + channels + channel, mask=exists, other=0.0)
        product = product * rstd
        tl.store(grad_weight + channel, product, mask=exists)
        tl.store(grad_bias + channel, total, mask=exists)
        scale = rstd * tl.load(weight + channel, mask=exists, other=0.0)
        slope = -scale * rstd * product / pixels
        tl.store(factors + channel, scale, mask=exists)
        tl.store(factors + channels + channel, slope, mask=exists)
        tl.store(factors + 2 * channels + channel, -scale * total / pixels - slope * mean, mask=exists)

    @triton.jit
    def _tile(pixels, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
        """Return the channels and the offsets of a program's values, and which of both exist."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        exists = channel < channels
        offset = row.to(tl.int64)[:, None] * channels + channel[None]
        return channel, exists, offset, (row < pixels)[:, None] & exists[None]

    @triton.jit
    def _apply_forward(
        x, residual, y, factors, pixels, channels, RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):  # fmt: skip
        channel, exists, offset, mask = _tile(pixels, channels, ROWS, CHANNELS)
        scale = tl.load(factors + channel, mask=exists, other=0.0)[None]
        shift = tl.load(factors + channels + channel, mask=exists, other=0.0)[None]
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32) * scale + shift
        if RESIDUAL:
            value += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # NaN stays
        tl.store(y + offset, value.to(y.dtype.element_ty), mask=mask)

    @triton.jit
    def _apply_backward(
        x, y, grad, grad_x, grad_residual, factors, pixels, channels, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
        ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        channel, exists, offset, mask = _tile(pixels, channels, ROWS, CHANNELS)
        of_grad = tl.load(factors + channel, mask=exists, other=0.0)[None]
        of_x = tl.load(factors + channels + channel, mask=exists, other=0.0)[None]
        addend = tl.load(factors + 2 * channels + channel, mask=exists, other=0.0)[None]
        slope = _masked(grad, y, offset, mask, RELU)
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        result = slope * of_grad + value * of_x + addend
        tl.store(grad_x + offset, result.to(grad_x.dtype.element_ty), mask=mask)
        if RESIDUAL:
            tl.store(grad_residual + offset, slope.to(grad_residual.dtype.element_ty), mask=mask)
