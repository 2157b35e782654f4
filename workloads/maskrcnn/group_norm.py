"""Group norm in the channels-last format and in the dtype of its input, by Triton kernels.

PyTorch's converts to fp32 under autocast and to the channels-first format, which takes most of a step that trains
from scratch.

Shapes: N images, P pixels, C channels, G groups. Sums are accumulated in fp32 and in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..common.nn.triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

_BLOCK = 4096  # elements that a program reads at a time
_PROGRAMS = 1024  # that share the sums of a batch: several on each multiprocessor

if triton is not None:

    @triton.jit
    def _sum_pixels(x, grad, sums, pixels, chunk, C: tl.constexpr, ROWS: tl.constexpr, BACKWARD: tl.constexpr):
        """Sum x and its square over a chunk of an image's pixels, or the gradient and its product with x."""
        image, part = tl.program_id(0), tl.program_id(1)
        channel, row = tl.arange(0, C), tl.arange(0, ROWS)
        first_sum, second_sum = tl.zeros((ROWS, C), tl.float32), tl.zeros((ROWS, C), tl.float32)
        end = tl.minimum(pixels, (part + 1) * chunk)
        base = image.to(tl.int64) * pixels * C
        for start in range(part * chunk, end, ROWS):
            offset = base + (start + row)[:, None] * C + channel[None]
            mask = (start + row < end)[:, None]
            value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
            if BACKWARD:
                slope = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
                first_sum += slope
                second_sum += slope * value
            else:
                first_sum += value
                second_sum += value * value
        target = sums + (image * tl.num_programs(1) + part) * 2 * C + channel
        tl.store(target, tl.sum(first_sum, 0))
        tl.store(target + C, tl.sum(second_sum, 0))

    @triton.jit
    def _combine(x, grad, out, factors, pixels, C: tl.constexpr, ROWS: tl.constexpr, BACKWARD: tl.constexpr):
        """Write x and, in the backward pass, the gradient, times their factors [N, C], plus the last factor."""
        image, part = tl.program_id(0), tl.program_id(1)
        channel, row = tl.arange(0, C), part * ROWS + tl.arange(0, ROWS)
        offset = image.to(tl.int64) * pixels * C + row[:, None] * C + channel[None]
        mask = (row < pixels)[:, None]
        of_image = factors + image * (3 if BACKWARD else 2) * C + channel
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        result = value * tl.load(of_image)[None] + tl.load(of_image + C)[None]
        if BACKWARD:
            result += tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32) * tl.load(of_image + 2 * C)[None]
        tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


class GroupNorm(nn.GroupNorm):
    """PyTorch's group norm, in the dtype of its input and, by Triton's kernels, channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, C, H, W]; a compiled model fuses PyTorch's own operations."""
        powers_of_two = self.num_channels & (self.num_channels - 1) == 0
        if torch.compiler.is_compiling() or not powers_of_two or not triton_available(x):
            return super().forward(x).to(x.dtype)
        return _GroupNorm.apply(x, self.weight, self.bias, self.num_groups, self.eps)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        mean, mean_square = _group_means(_sums(x), groups, x).unbind(1)
        rstd = (mean_square - mean * mean).clamp(min=0).add(eps).rsqrt()
        mean, rstd = _to_channels(mean, x), _to_channels(rstd, x)
        scale = rstd * weight
        ctx.groups = groups
        ctx.save_for_backward(x, weight, mean, rstd)
        return _combined(x, torch.stack([scale, bias - mean * scale], 1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """With x' the normalized input: dx = rstd (w dy - mean(w dy) - x' mean(w dy x')), the means over the group."""
        x, weight, mean, rstd = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_sum, product_sum = _sums(x, grad).unbind(1)
        normalized_sum = (product_sum - mean * grad_sum) * rstd  # of dy x'
        both = torch.stack([grad_sum, normalized_sum], 1)
        grad_mean, normalized_mean = (
            _to_channels(part, x) for part in _group_means(both * weight, ctx.groups, x).unbind(1)
        )
        slope = -rstd * rstd * normalized_mean
        factors = torch.stack([slope, -mean * slope - rstd * grad_mean, rstd * weight], 1)
        return _combined(x, factors, grad), normalized_sum.sum(0), grad_sum.sum(0), None, None


def _sums(x: Tensor, grad: Tensor | None = None) -> Tensor:
    """Return float32 [N, 2, C]: sums over the pixels of x and x^2, or of the gradient and its product with x."""
    images, channels, pixels = len(x), x.shape[1], x.shape[2] * x.shape[3]
    rows = max(1, _BLOCK // channels)
    parts = min(triton.cdiv(pixels, rows), triton.cdiv(_PROGRAMS, images))
    sums = torch.empty(images, parts, 2, channels, device=x.device)
    chunk = triton.cdiv(pixels, parts)
    _sum_pixels[(images, parts)](x, x if grad is None else grad, sums, pixels, chunk, channels, rows, grad is not None)
    return sums.sum(1)


def _combined(x: Tensor, factors: Tensor, grad: Tensor | None = None) -> Tensor:
    """Return x times the first of the factors [N, 2 or 3, C], plus the second, plus the gradient times the third."""
    images, channels, pixels = len(x), x.shape[1], x.shape[2] * x.shape[3]
    out, rows = torch.empty_like(x), max(1, _BLOCK // channels)
    grid = images, triton.cdiv(pixels, rows)
    _combine[grid](x, x if grad is None else grad, out, factors, pixels, channels, rows, grad is not None)
    return out


def _group_means(sums: Tensor, groups: int, x: Tensor) -> Tensor:
    """Return the means [N, 2, G] over groups from sums [N, 2, C] over the pixels of x."""
    return sums.unflatten(2, (groups, -1)).sum(3) * (groups / x[0].numel())


def _to_channels(values: Tensor, x: Tensor) -> Tensor:
    """Repeat values [N, G] of groups for their channels: [N, C]."""
    return values.repeat_interleave(x.shape[1] // values.shape[1], 1)
