"""Triton kernels that pool regions and draw masks on the device, in shapes that depend on no data.

Shapes: R regions, L levels of a pyramid, N images, C channels, S pixels of a region's edge.
Boxes are left, top, right, bottom in pixels. Every sum is kept in fp32.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.nn.packing import uploaded
from ..common.nn.triton_support import available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

__all__ = ["align", "available", "fill"]

_SAMPLES = 2  # of a region's pixel, each way (mlperf.md 12.3)


if triton is not None:

    @triton.jit
    def _frame(regions, levels, scales, sizes, region, pixel, S: tl.constexpr):
        """Of a region's pixel: its level's address, height, width, image, and where its corner lies, and its size."""
        at = regions + region * 5
        level = tl.load(levels + region)
        scale = tl.load(scales + level)
        left, top = tl.load(at + 1) * scale, tl.load(at + 2) * scale
        # Regions of less than a cell are one, as the reference has it.
        wide = tl.maximum(tl.load(at + 3) * scale - left, 1.0) / S
        tall = tl.maximum(tl.load(at + 4) * scale - top, 1.0) / S
        height, width = tl.load(sizes + level * 2), tl.load(sizes + level * 2 + 1)
        return (
            level,
            tl.load(at).to(tl.int64),
            height,
            width,
            left + (pixel % S) * wide,
            top + (pixel // S) * tall,
            wide,
            tall,
        )

    @triton.jit
    def _sample(x, y, height, width):
        """The four cells around a point and their shares; nothing of a point a cell or more outside."""
        outside = (y < -1.0) | (y > height) | (x < -1.0) | (x > width)
        x, y = tl.maximum(x, 0.0), tl.maximum(y, 0.0)
        x0, y0 = tl.minimum(x.to(tl.int32), width - 1), tl.minimum(y.to(tl.int32), height - 1)
        x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
        across = tl.where(x0 >= width - 1, 0.0, x - x0)
        down = tl.where(y0 >= height - 1, 0.0, y - y0)
        share = tl.where(outside, 0.0, 1.0)
        return x0, y0, x1, y1, across, down, share

    @triton.jit
    def _align(
        maps, sizes, scales, regions, levels, out,
        C: tl.constexpr, S: tl.constexpr, SAMPLES: tl.constexpr, HALF: tl.constexpr, BFLOAT: tl.constexpr,
    ):  # fmt: skip
        region, pixel = tl.program_id(0), tl.program_id(1)
        level, image, height, width, x, y, wide, tall = _frame(regions, levels, scales, sizes, region, pixel, S)
        address = tl.load(maps + level)
        if BFLOAT:
            source = address.to(tl.pointer_type(tl.bfloat16))
        elif HALF:
            source = address.to(tl.pointer_type(tl.float16))
        else:
            source = address.to(tl.pointer_type(tl.float32))
        channel = tl.arange(0, C)
        source += image * height * width * C
        total = tl.zeros((C,), tl.float32)
        for number in range(SAMPLES * SAMPLES):
            across_at = x + (number % SAMPLES + 0.5) * wide / SAMPLES
            down_at = y + (number // SAMPLES + 0.5) * tall / SAMPLES
            x0, y0, x1, y1, across, down, share = _sample(across_at, down_at, height, width)
            a = tl.load(source + (y0 * width + x0) * C + channel).to(tl.float32)
            b = tl.load(source + (y0 * width + x1) * C + channel).to(tl.float32)
            c = tl.load(source + (y1 * width + x0) * C + channel).to(tl.float32)
            d = tl.load(source + (y1 * width + x1) * C + channel).to(tl.float32)
            upper, lower = a + (b - a) * across, c + (d - c) * across
            total += share * (upper + (lower - upper) * down)
        place = out + (region.to(tl.int64) * S * S + pixel) * C + channel
        tl.store(place, (total / (SAMPLES * SAMPLES)).to(out.dtype.element_ty))

    @triton.jit
    def _align_back(
        maps, sizes, scales, regions, levels, given, C: tl.constexpr, S: tl.constexpr, SAMPLES: tl.constexpr
    ):
        region, pixel = tl.program_id(0), tl.program_id(1)
        level, image, height, width, x, y, wide, tall = _frame(regions, levels, scales, sizes, region, pixel, S)
        channel = tl.arange(0, C)
        target = tl.load(maps + level).to(tl.pointer_type(tl.float32)) + image * height * width * C
        slope = tl.load(given + (region.to(tl.int64) * S * S + pixel) * C + channel).to(tl.float32)
        slope = slope / (SAMPLES * SAMPLES)
        for number in range(SAMPLES * SAMPLES):
            across_at = x + (number % SAMPLES + 0.5) * wide / SAMPLES
            down_at = y + (number // SAMPLES + 0.5) * tall / SAMPLES
            x0, y0, x1, y1, across, down, share = _sample(across_at, down_at, height, width)
            part = slope * share
            tl.atomic_add(target + (y0 * width + x0) * C + channel, part * (1.0 - across) * (1.0 - down))
            tl.atomic_add(target + (y0 * width + x1) * C + channel, part * across * (1.0 - down))
            tl.atomic_add(target + (y1 * width + x0) * C + channel, part * (1.0 - across) * down)
            tl.atomic_add(target + (y1 * width + x1) * C + channel, part * across * down)

    @triton.jit
    def _fill(edges, last, begin, objects, regions, out, SIDE: tl.constexpr, BLOCK: tl.constexpr):
        region = tl.program_id(0)
        pixel = tl.arange(0, BLOCK)
        at = regions + region * 4
        left, top = tl.load(at), tl.load(at + 1)
        x = left + (pixel % SIDE + 0.5) / SIDE * (tl.load(at + 2) - left + 1.0)
        y = top + (pixel // SIDE + 0.5) / SIDE * (tl.load(at + 3) - top + 1.0)
        number = tl.load(objects + region)
        inside = tl.zeros((BLOCK,), tl.int32)
        odd = tl.zeros((BLOCK,), tl.int32)
        for edge in range(tl.load(begin + number), tl.load(begin + number + 1)):
            x0, y0 = tl.load(edges + edge * 4), tl.load(edges + edge * 4 + 1)
            x1, y1 = tl.load(edges + edge * 4 + 2), tl.load(edges + edge * 4 + 3)
            slope = (x1 - x0) / tl.where(y1 == y0, 1.0, y1 - y0)
            crossed = ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) * slope)
            odd = odd ^ crossed.to(tl.int32)
            done = tl.load(last + edge).to(tl.int32)
            inside = inside | (odd * done)
            odd = odd * (1 - done)
        tl.store(out + region.to(tl.int64) * SIDE * SIDE + pixel, inside.to(tl.float32), mask=pixel < SIDE * SIDE)


def fill(edges: Tensor, last: Tensor, begin: Tensor, objects: Tensor, regions: Tensor, side: int) -> Tensor:
    """float32 [R, side, side]: which pixels' middles lie in outlines, as `masks.targets` says."""
    out = torch.empty(len(regions), side, side, dtype=torch.float32, device=regions.device)
    block = triton.next_power_of_2(side * side)
    _fill[(len(regions),)](edges, last.to(torch.int8), begin, objects, regions.contiguous(), out, side, block)
    return out


class _Align(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, regions: Tensor, levels: Tensor, scales: Tensor, size: int, *maps: Tensor) -> Tensor:
        lying = [x.permute(0, 2, 3, 1).contiguous() for x in maps]
        device, channels = regions.device, maps[0].shape[1]
        places = uploaded(np.array([x.data_ptr() for x in lying]), device)
        sizes = uploaded(np.array([x.shape[1:3] for x in lying], dtype=np.int32), device)
        out = lying[0].new_empty(len(regions), size, size, channels)
        kind = maps[0].dtype
        _align[(len(regions), size * size)](
            places, sizes, scales, regions, levels, out, channels, size, _SAMPLES,
            kind == torch.float16, kind == torch.bfloat16,
        )  # fmt: skip
        ctx.size, ctx.kind, ctx.shapes = size, kind, [x.shape for x in lying]
        ctx.save_for_backward(regions, levels, scales, sizes)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        regions, levels, scales, sizes = ctx.saved_tensors
        slopes = [torch.zeros(shape, dtype=torch.float32, device=regions.device) for shape in ctx.shapes]
        places = uploaded(np.array([x.data_ptr() for x in slopes]), regions.device)
        lying = given[0].permute(0, 2, 3, 1).contiguous()
        channels = lying.shape[3]
        _align_back[(len(regions), ctx.size**2)](
            places, sizes, scales, regions, levels, lying, channels, ctx.size, _SAMPLES
        )
        return None, None, None, None, *(x.to(ctx.kind).permute(0, 3, 1, 2) for x in slopes)


def align(maps: Sequence[Tensor], scales: Tensor, regions: Tensor, levels: Tensor, size: int) -> Tensor:
    """[R, C, size, size]: features of each region from its own level, averaged over 2x2 points of each pixel.

    `maps` [N, C, H, W] each, channels-last and C a power of two; `scales` float32 [L] from pixels to cells; `regions`
    float32 [R, 5]: image, then corners; `levels` int32 [R]. No half-pixel shift, as mlperf.md 12.3 has it. The sums of
    gradients are made by atomic additions, whose order differs from run to run.
    """
    return _Align.apply(regions, levels, scales, size, *maps)
