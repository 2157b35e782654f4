"""Triton kernels for RoIAlign and for rasterizing masks, in shapes that do not depend on the data.

Shapes: R regions, L levels of the feature pyramid, N images, C channels, S pixels along a pooled region's side.
Boxes are left, top, right, bottom in pixels. Sums are accumulated in fp32.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.nn.packing import copy_to_device
from ..common.nn.triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

__all__ = ["rasterize", "roi_align", "triton_available"]

_SAMPLING_RATIO = 2  # sampling points of a pooled pixel along each axis (docs/mlperf_rules.md, "Mask R-CNN")


if triton is not None:

    @triton.jit
    def _pooled_pixel(regions, levels, scales, sizes, region, pixel, S: tl.constexpr):
        """Return level, image, height and width of its map, and left, top, width and height of a pooled pixel."""
        box = regions + region * 5
        level = tl.load(levels + region)
        scale = tl.load(scales + level)
        left, top = tl.load(box + 1) * scale, tl.load(box + 2) * scale
        # The reference enlarges regions to at least one cell.
        bin_width = tl.maximum(tl.load(box + 3) * scale - left, 1.0) / S
        bin_height = tl.maximum(tl.load(box + 4) * scale - top, 1.0) / S
        height, width = tl.load(sizes + level * 2), tl.load(sizes + level * 2 + 1)
        return (
            level,
            tl.load(box).to(tl.int64),
            height,
            width,
            left + (pixel % S) * bin_width,
            top + (pixel // S) * bin_height,
            bin_width,
            bin_height,
        )

    @triton.jit
    def _bilinear(x, y, height, width):
        """Return the four cells around a point, its position between them, and 0 if it is more than a cell outside."""
        outside = (y < -1.0) | (y > height) | (x < -1.0) | (x > width)
        x, y = tl.maximum(x, 0.0), tl.maximum(y, 0.0)
        x0, y0 = tl.minimum(x.to(tl.int32), width - 1), tl.minimum(y.to(tl.int32), height - 1)
        x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
        dx = tl.where(x0 >= width - 1, 0.0, x - x0)
        dy = tl.where(y0 >= height - 1, 0.0, y - y0)
        inside = tl.where(outside, 0.0, 1.0)
        return x0, y0, x1, y1, dx, dy, inside

    @triton.jit
    def _roi_align_forward(
        maps, sizes, scales, regions, levels, out,
        C: tl.constexpr, S: tl.constexpr, SAMPLES: tl.constexpr, HALF: tl.constexpr, BFLOAT: tl.constexpr,
    ):  # fmt: skip
        region, pixel = tl.program_id(0), tl.program_id(1)
        level, image, height, width, left, top, bin_width, bin_height = _pooled_pixel(
            regions, levels, scales, sizes, region, pixel, S
        )
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
            x = left + (number % SAMPLES + 0.5) * bin_width / SAMPLES
            y = top + (number // SAMPLES + 0.5) * bin_height / SAMPLES
            x0, y0, x1, y1, dx, dy, inside = _bilinear(x, y, height, width)
            top_left = tl.load(source + (y0 * width + x0) * C + channel).to(tl.float32)
            top_right = tl.load(source + (y0 * width + x1) * C + channel).to(tl.float32)
            bottom_left = tl.load(source + (y1 * width + x0) * C + channel).to(tl.float32)
            bottom_right = tl.load(source + (y1 * width + x1) * C + channel).to(tl.float32)
            upper, lower = top_left + (top_right - top_left) * dx, bottom_left + (bottom_right - bottom_left) * dx
            total += inside * (upper + (lower - upper) * dy)
        target = out + (region.to(tl.int64) * S * S + pixel) * C + channel
        tl.store(target, (total / (SAMPLES * SAMPLES)).to(out.dtype.element_ty))

    @triton.jit
    def _roi_align_backward(
        map_grads, sizes, scales, regions, levels, out_grad, C: tl.constexpr, S: tl.constexpr, SAMPLES: tl.constexpr
    ):
        region, pixel = tl.program_id(0), tl.program_id(1)
        level, image, height, width, left, top, bin_width, bin_height = _pooled_pixel(
            regions, levels, scales, sizes, region, pixel, S
        )
        channel = tl.arange(0, C)
        target = tl.load(map_grads + level).to(tl.pointer_type(tl.float32)) + image * height * width * C
        grad = tl.load(out_grad + (region.to(tl.int64) * S * S + pixel) * C + channel).to(tl.float32)
        grad = grad / (SAMPLES * SAMPLES)
        for number in range(SAMPLES * SAMPLES):
            x = left + (number % SAMPLES + 0.5) * bin_width / SAMPLES
            y = top + (number // SAMPLES + 0.5) * bin_height / SAMPLES
            x0, y0, x1, y1, dx, dy, inside = _bilinear(x, y, height, width)
            point_grad = grad * inside
            tl.atomic_add(target + (y0 * width + x0) * C + channel, point_grad * (1.0 - dx) * (1.0 - dy))
            tl.atomic_add(target + (y0 * width + x1) * C + channel, point_grad * dx * (1.0 - dy))
            tl.atomic_add(target + (y1 * width + x0) * C + channel, point_grad * (1.0 - dx) * dy)
            tl.atomic_add(target + (y1 * width + x1) * C + channel, point_grad * dx * dy)

    @triton.jit
    def _to_fifths(coordinate, low, ratio):
        return (((coordinate - low) * ratio).to(tl.float64) * 5.0 + 0.5).to(tl.int32).to(tl.float64)

    @triton.jit
    def _first_fifth(x0, y0, x1, y1, x):
        """Return the fifth of a row at which an edge crosses the columns `x`, and whether it does; see `masks`."""
        steep = tl.abs(x1 - x0) < tl.abs(y1 - y0)
        swap = tl.where(steep, y0 > y1, x0 > x1)
        from_x, to_x = tl.where(swap, x1, x0), tl.where(swap, x0, x1)
        from_y, to_y = tl.where(swap, y1, y0), tl.where(swap, y0, y1)
        length = tl.maximum(tl.where(steep, to_y - from_y, to_x - from_x), 1.0)
        slope = tl.where(steep, to_x - from_x, to_y - from_y) / length
        step = x - from_x
        flat_y = tl.minimum(tl.floor(from_y + slope * step + 0.5), tl.floor(from_y + slope * (step + 1.0) + 0.5))
        step = tl.ceil((x + 0.5 - from_x) / tl.where(slope == 0.0, 1.0, slope))
        before = (tl.floor(from_x + slope * (step - 1.0) + 0.5) > x) == (slope > 0.0)
        at = (tl.floor(from_x + slope * step + 0.5) > x) == (slope > 0.0)
        steep_y = from_y + step - tl.where(before, 1.0, 0.0) - tl.where(at, 1.0, 0.0)
        return tl.where(steep, steep_y, flat_y), (tl.minimum(x0, x1) <= x) & (x < tl.maximum(x0, x1))

    @triton.jit
    def _rasterize(edges, last, begin, objects, regions, out, SIDE: tl.constexpr, BLOCK: tl.constexpr):
        region = tl.program_id(0)
        row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None]
        box = regions + region * 4
        left, top = tl.load(box), tl.load(box + 1)
        ratio_x = (SIDE / tl.maximum(tl.load(box + 2) - left, 1.0).to(tl.float64)).to(tl.float32)
        ratio_y = (SIDE / tl.maximum(tl.load(box + 3) - top, 1.0).to(tl.float64)).to(tl.float32)
        x, y = (5 * column + 2).to(tl.float64), (5 * row + 2).to(tl.float64)
        number = tl.load(objects + region)
        inside = tl.zeros((BLOCK, BLOCK), tl.int32)
        odd = tl.zeros((BLOCK, BLOCK), tl.int32)
        for edge in range(tl.load(begin + number), tl.load(begin + number + 1)):
            x0 = _to_fifths(tl.load(edges + edge * 4), left, ratio_x)
            y0 = _to_fifths(tl.load(edges + edge * 4 + 1), top, ratio_y)
            x1 = _to_fifths(tl.load(edges + edge * 4 + 2), left, ratio_x)
            y1 = _to_fifths(tl.load(edges + edge * 4 + 3), top, ratio_y)
            first, crossed = _first_fifth(x0, y0, x1, y1, x)
            odd = odd ^ (crossed & (first <= y)).to(tl.int32)
            done = tl.load(last + edge).to(tl.int32)
            inside = inside | (odd * done)
            odd = odd * (1 - done)
        target = out + region.to(tl.int64) * SIDE * SIDE + row * SIDE + column
        tl.store(target, inside.to(tl.float32), mask=(row < SIDE) & (column < SIDE))


def rasterize(edges: Tensor, last: Tensor, begin: Tensor, objects: Tensor, regions: Tensor, side: int) -> Tensor:
    """Return float32 [R, side, side]: which pixels of the regions are inside their objects; see `masks`.

    A fused multiply-add would round differently from pycocotools.
    """
    out = torch.empty(len(regions), side, side, dtype=torch.float32, device=regions.device)
    block = triton.next_power_of_2(side)
    arguments = edges, last.to(torch.int8), begin, objects, regions.contiguous(), out, side, block
    _rasterize[(len(regions),)](*arguments, enable_fp_fusion=False)
    return out


class _RoiAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, regions: Tensor, levels: Tensor, scales: Tensor, size: int, *maps: Tensor) -> Tensor:
        nhwc_maps = [x.permute(0, 2, 3, 1).contiguous() for x in maps]
        device, channels = regions.device, maps[0].shape[1]
        addresses = copy_to_device(np.array([x.data_ptr() for x in nhwc_maps]), device)
        sizes = copy_to_device(np.array([x.shape[1:3] for x in nhwc_maps], dtype=np.int32), device)
        out = nhwc_maps[0].new_empty(len(regions), size, size, channels)
        dtype = maps[0].dtype
        _roi_align_forward[(len(regions), size * size)](
            addresses, sizes, scales, regions, levels, out, channels, size, _SAMPLING_RATIO,
            dtype == torch.float16, dtype == torch.bfloat16,
        )  # fmt: skip
        ctx.size, ctx.dtype, ctx.shapes = size, dtype, [x.shape for x in nhwc_maps]
        ctx.save_for_backward(regions, levels, scales, sizes)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        regions, levels, scales, sizes = ctx.saved_tensors
        map_grads = [torch.zeros(shape, dtype=torch.float32, device=regions.device) for shape in ctx.shapes]
        addresses = copy_to_device(np.array([x.data_ptr() for x in map_grads]), regions.device)
        out_grad = grads[0].permute(0, 2, 3, 1).contiguous()
        _roi_align_backward[(len(regions), ctx.size**2)](
            addresses, sizes, scales, regions, levels, out_grad, out_grad.shape[3], ctx.size, _SAMPLING_RATIO
        )
        return None, None, None, None, *(x.to(ctx.dtype).permute(0, 3, 1, 2) for x in map_grads)


def roi_align(maps: Sequence[Tensor], scales: Tensor, regions: Tensor, levels: Tensor, size: int) -> Tensor:
    """Return [R, C, size, size]: RoIAlign of each region on the map of its level, with 2x2 samples per pooled pixel.

    `maps` are [N, C, H, W] each, channels-last, with C a power of two. `scales` float32 [L] convert pixels to cells.
    `regions` float32 [R, 5] are image index and corners; `levels` are int32 [R]. There is no half-pixel shift
    (docs/mlperf_rules.md, "Mask R-CNN"). Gradients are summed by atomic additions, whose order varies between runs.
    """
    return _RoiAlign.apply(regions, levels, scales, size, *maps)
