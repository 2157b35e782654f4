"""Group norm in the channels-last format and in the dtype of its input, by Triton kernels.

PyTorch's converts to fp32 under autocast and to the channels-first format, which takes most of a step that trains
from scratch.

Shapes: N images, P pixels, C channels, G groups. Sums are accumulated in fp32 and in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..common.nn.triton_support import tl, triton, triton_available

_BLOCK = 4096  # elements that a program reads at a time
# Programs that share the sums of a batch. Their number decides how sums are rounded, so it is not derived from the
# device: it fills the GPUs of today, and all of them round alike.
_SUM_PROGRAMS = 1024
_MAX_IMAGE = 2**30  # values of an image, whose offsets are 32 bits wide; those of a batch are 64


class GroupNorm(nn.GroupNorm):
    """PyTorch's group norm, in the dtype of its input and, by Triton's kernels, channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, C, H, W] in the dtype of x [N, C, H, W]; a compiled model fuses PyTorch's own operations."""
        has_kernel = (
            triton_available(x)
            and not torch.compiler.is_compiling()
            and self.num_channels & (self.num_channels - 1) == 0  # a power of two
            and x.numel() <= len(x) * _MAX_IMAGE
        )
        if not has_kernel:
            return super().forward(x).to(x.dtype)
        return _GroupNorm.apply(x, self.weight, self.bias, self.num_groups, self.eps)


class _GroupNorm(torch.autograd.Function):
    """y = w x_hat + b, x_hat = (x - mean(x)) rstd, with statistics of each image and group of channels.

    dx = rstd (w dy - mean(w dy) - x_hat mean(w dy x_hat)), dw = sum(dy x_hat), db = sum(dy). Wu and He 2018,
    arXiv:1803.08494.
    """

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
        x, weight, mean, rstd = ctx.saved_tensors
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        dy_sum, product_sum = _sums(x, dy).unbind(1)
        x_hat_sum = (product_sum - mean * dy_sum) * rstd  # of dy x_hat
        both = torch.stack([dy_sum, x_hat_sum], 1)
        dy_mean, x_hat_mean = (_to_channels(part, x) for part in _group_means(both * weight, ctx.groups, x).unbind(1))
        slope = -rstd * rstd * x_hat_mean
        factors = torch.stack([slope, -mean * slope - rstd * dy_mean, rstd * weight], 1)
        return _combined(x, factors, dy), x_hat_sum.sum(0), dy_sum.sum(0), None, None


def _sums(x: Tensor, dy: Tensor | None = None) -> Tensor:
    """Return float32 [N, 2, C]: sums over the pixels of x and x^2, or of dy and dy x."""
    images, channels, pixels = len(x), x.shape[1], x.shape[2] * x.shape[3]
    block = max(1, _BLOCK // channels)
    parts = min(triton.cdiv(pixels, block), triton.cdiv(_SUM_PROGRAMS, images))
    sums = torch.empty(images, parts, 2, channels, device=x.device)
    _sum_pixels[(images, parts)](
        x_ptr=x, dy_ptr=x if dy is None else dy, partial_sums_ptr=sums, num_pixels=pixels,
        pixels_per_part=triton.cdiv(pixels, parts), C=channels, BLOCK_P=block, BACKWARD=dy is not None,
    )  # fmt: skip
    return sums.sum(1)


def _combined(x: Tensor, factors: Tensor, dy: Tensor | None = None) -> Tensor:
    """Return a x + b or, with dy, a x + b + c dy, of the factors a, b and c [N, 2 or 3, C]."""
    images, channels, pixels = len(x), x.shape[1], x.shape[2] * x.shape[3]
    out, block = torch.empty_like(x), max(1, _BLOCK // channels)
    _combine[(images, triton.cdiv(pixels, block))](
        x_ptr=x, dy_ptr=x if dy is None else dy, out_ptr=out, factors_ptr=factors, num_pixels=pixels, C=channels,
        BLOCK_P=block, BACKWARD=dy is not None,
    )  # fmt: skip
    return out


def _group_means(sums: Tensor, groups: int, x: Tensor) -> Tensor:
    """Return the means [N, 2, G] over groups from sums [N, 2, C] over the pixels of x."""
    return sums.unflatten(2, (groups, -1)).sum(3) * (groups / x[0].numel())


def _to_channels(values: Tensor, x: Tensor) -> Tensor:
    """Repeat values [N, G] of groups for their channels: [N, C]."""
    return values.repeat_interleave(x.shape[1] // values.shape[1], 1)


@triton.jit
def _sum_pixels(
    x_ptr, dy_ptr, partial_sums_ptr, num_pixels, pixels_per_part, C: tl.constexpr, BLOCK_P: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    """Sum x and x^2 over a part of an image's pixels or, in the backward pass, dy and dy x."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, pixel = tl.arange(0, C), tl.arange(0, BLOCK_P)
    first_sum, second_sum = tl.zeros((BLOCK_P, C), tl.float32), tl.zeros((BLOCK_P, C), tl.float32)
    end = tl.minimum(num_pixels, (part + 1) * pixels_per_part)
    base = image * num_pixels * C
    for start in range(part * pixels_per_part, end, BLOCK_P):
        offset = base + (start + pixel)[:, None] * C + channel[None]
        mask = (start + pixel < end)[:, None]
        x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        if BACKWARD:
            dy = tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float32)
            first_sum += dy
            second_sum += dy * x
        else:
            first_sum += x
            second_sum += x * x
    target_ptr = partial_sums_ptr + (image * tl.num_programs(1) + part) * 2 * C + channel
    tl.store(target_ptr, tl.sum(first_sum, 0))
    tl.store(target_ptr + C, tl.sum(second_sum, 0))


@triton.jit
def _combine(
    x_ptr, dy_ptr, out_ptr, factors_ptr, num_pixels, C: tl.constexpr, BLOCK_P: tl.constexpr, BACKWARD: tl.constexpr
):
    """Write a x + b or, in the backward pass, a x + b + c dy, of the factors [N, 2 or 3, C]."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, pixel = tl.arange(0, C), part * BLOCK_P + tl.arange(0, BLOCK_P)
    offset = image * num_pixels * C + pixel[:, None] * C + channel[None]
    mask = (pixel < num_pixels)[:, None]
    factors_ptr += image * (3 if BACKWARD else 2) * C + channel
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    out = x * tl.load(factors_ptr)[None] + tl.load(factors_ptr + C)[None]
    if BACKWARD:
        out += tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float32) * tl.load(factors_ptr + 2 * C)[None]
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=mask)
