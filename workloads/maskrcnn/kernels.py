"""Triton kernels for RoIAlign and for rasterizing masks, in shapes that do not depend on the data.

Shapes: N images, K regions of each, R = N * K, C channels, S pixels along a pooled region's side.
Boxes are left, top, right, bottom in pixels. Sums are accumulated in fp32.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.nn.triton_support import tl, triton
from .boxes import STRIDES

_TILE = 8  # cells along a side of a program's tile of a map
_BLOCK_P, _BLOCK_C = 64, 128  # pooled pixels and channels of a program's matrix products
_SAMPLING_RATIO = 2  # sampling points of a pooled pixel along each axis (docs/mlperf_rules.md, "Mask R-CNN")


def roi_align(maps: Sequence[Tensor], regions: Tensor, levels: Tensor, size: int) -> Tensor:
    """Return [N * K, C, size, size]: RoIAlign of each region on the map of its level, 2x2 samples per pooled pixel.

    `maps` are four of [N, C, H, W], channels-last, of strides 4, 8, 16 and 32 pixels, each half as high and wide as the
    one before. `regions` float32 [N, K, 4] are corners in pixels, `levels` [N, K] from 0 to 3. There is no half-pixel
    shift (docs/mlperf_rules.md, "Mask R-CNN"). Gradients are summed in the order of the regions, equal in each run.
    """
    finest = maps[0].shape
    if any(x.shape != (*finest[:2], finest[2] >> level, finest[3] >> level) for level, x in enumerate(maps)):
        raise ValueError("Each map must be half as high and wide as the one before.")
    return _RoiAlign.apply(regions, levels, size, *maps)


def rasterize(edges: Tensor, last: Tensor, begin: Tensor, objects: Tensor, regions: Tensor, side: int) -> Tensor:
    """Return float32 [R, side, side]: which pixels of the regions are inside their objects; see `masks`.

    Shapes and dtypes are those of `masks.mask_targets` and `masks.Outlines`. A fused multiply-add would round
    differently from pycocotools.
    """
    out = torch.empty(len(regions), side, side, dtype=torch.float32, device=regions.device)
    _rasterize[(len(regions),)](
        edges_ptr=edges, last_ptr=last.to(torch.int8), begin_ptr=begin, objects_ptr=objects,
        regions_ptr=regions.contiguous(), out_ptr=out, SIDE=side, BLOCK=triton.next_power_of_2(side),
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


class _RoiAlign(torch.autograd.Function):
    """y[r, i, j] = mean of x, interpolated bilinearly, at the sampling points of pixel (i, j) of region r.

    dx sums, over regions and pixels, dy times the weights of the interpolation. He et al. 2017, arXiv:1703.06870.
    """

    @staticmethod
    def forward(ctx: Any, regions: Tensor, levels: Tensor, size: int, *maps: Tensor) -> Tensor:
        images, regions_per_image, _ = regions.shape
        nhwc_maps = [x.permute(0, 2, 3, 1).contiguous() for x in maps]
        _, height, width, channels = nhwc_maps[0].shape
        regions, levels = regions.contiguous(), levels.int().contiguous()
        out = nhwc_maps[0].new_empty(images * regions_per_image, size, size, channels)
        _roi_align_forward[(len(out), size * size)](
            **{f"x{level}_ptr": x for level, x in enumerate(nhwc_maps)}, height=height, width=width,
            regions_ptr=regions, levels_ptr=levels, y_ptr=out, regions_per_image=regions_per_image, C=channels,
            FINEST=STRIDES[0], S=size, SAMPLES=_SAMPLING_RATIO,
        )  # fmt: skip
        ctx.size, ctx.shapes = size, [x.shape for x in nhwc_maps]
        ctx.save_for_backward(regions, levels)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        regions, levels = ctx.saved_tensors
        images, height, width, channels = ctx.shapes[0]
        dy = grads[0].permute(0, 2, 3, 1).contiguous()
        dxs = [dy.new_empty(shape) for shape in ctx.shapes]
        tiles = sum(images * triton.cdiv(shape[1], _TILE) * triton.cdiv(shape[2], _TILE) for shape in ctx.shapes)
        block = max(16, min(channels, _BLOCK_C))
        _roi_align_backward[(tiles, triton.cdiv(channels, block))](
            **{f"dx{level}_ptr": dx for level, dx in enumerate(dxs)}, height=height, width=width, images=images,
            regions_ptr=regions, levels_ptr=levels, dy_ptr=dy, regions_per_image=regions.shape[1], C=channels,
            FINEST=STRIDES[0], S=ctx.size, SAMPLES=_SAMPLING_RATIO, TILE=_TILE,
            BLOCK_R=triton.next_power_of_2(regions.shape[1]), BLOCK_P=_BLOCK_P, BLOCK_C=block,
        )  # fmt: skip
        return None, None, None, *(dx.permute(0, 3, 1, 2) for dx in dxs)


@triton.jit
def _roi_align_forward(
    x0_ptr, x1_ptr, x2_ptr, x3_ptr, height, width, regions_ptr, levels_ptr, y_ptr, regions_per_image,
    C: tl.constexpr, FINEST: tl.constexpr, S: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    """Write all channels of a pooled pixel; `height` and `width` are those of the finest map."""
    region, pixel = tl.program_id(0), tl.program_id(1)
    level = tl.load(levels_ptr + region)
    height, width = height >> level, width >> level
    left, top, bin_width, bin_height = _bins(regions_ptr, region, level, FINEST, S)
    left, top = left + (pixel % S) * bin_width, top + (pixel // S) * bin_height
    channel = tl.arange(0, C)
    image = (region // regions_per_image).to(tl.int64)
    x_ptr = _of_level(level, x0_ptr, x1_ptr, x2_ptr, x3_ptr)
    total = tl.zeros((C,), tl.float32)
    for number in range(0, SAMPLES * SAMPLES):
        x = left + (number % SAMPLES + 0.5) * bin_width / SAMPLES
        y = top + (number // SAMPLES + 0.5) * bin_height / SAMPLES
        x0, y0, x1, y1, dx, dy, inside = _bilinear(x, y, height, width)
        upper_row, lower_row = (image * height + y0) * width, (image * height + y1) * width
        top_left = tl.load(x_ptr + (upper_row + x0) * C + channel).to(tl.float32)
        top_right = tl.load(x_ptr + (upper_row + x1) * C + channel).to(tl.float32)
        bottom_left = tl.load(x_ptr + (lower_row + x0) * C + channel).to(tl.float32)
        bottom_right = tl.load(x_ptr + (lower_row + x1) * C + channel).to(tl.float32)
        upper, lower = top_left + (top_right - top_left) * dx, bottom_left + (bottom_right - bottom_left) * dx
        total += inside * (upper + (lower - upper) * dy)
    target_ptr = y_ptr + (region.to(tl.int64) * S * S + pixel) * C + channel
    tl.store(target_ptr, (total / (SAMPLES * SAMPLES)).to(y_ptr.dtype.element_ty))


@triton.jit
def _roi_align_backward(
    dx0_ptr, dx1_ptr, dx2_ptr, dx3_ptr, height, width, images, regions_ptr, levels_ptr, dy_ptr, regions_per_image,
    C: tl.constexpr, FINEST: tl.constexpr, S: tl.constexpr, SAMPLES: tl.constexpr,
    TILE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the cells of a tile over the regions that touch it, by matrix products."""
    tile, level, before, end = tl.program_id(0), 0, 0, 0
    for finer in tl.static_range(3):  # the tiles of all levels have consecutive numbers
        end += images * tl.cdiv(height >> finer, TILE) * tl.cdiv(width >> finer, TILE)
        level, before = tl.where(tile >= end, finer + 1, level), tl.where(tile >= end, end, before)
    height, width = height >> level, width >> level
    rows, columns = tl.cdiv(height, TILE), tl.cdiv(width, TILE)
    image = (tile - before) // (rows * columns)
    first_y = (tile - before) // columns % rows * TILE
    first_x = (tile - before) % columns * TILE

    index = tl.arange(0, BLOCK_R)
    exists = index < regions_per_image
    region = image * regions_per_image + index
    on_level = exists & (tl.load(levels_ptr + region, mask=exists, other=-1) == level)
    left, top, bin_width, bin_height = _bins(regions_ptr, tl.where(exists, region, 0), level, FINEST, S)
    right, bottom = left + bin_width * S, top + bin_height * S
    hits = on_level & (tl.minimum(tl.maximum(right, 0.0), width - 1.0) > first_x - 1.0)
    hits = hits & (tl.minimum(tl.maximum(left, 0.0), width - 1.0) < first_x + TILE)
    hits = hits & (tl.minimum(tl.maximum(bottom, 0.0), height - 1.0) > first_y - 1.0)
    hits = hits & (tl.minimum(tl.maximum(top, 0.0), height - 1.0) < first_y + TILE)

    cell, pixel = tl.arange(0, TILE * TILE), tl.arange(0, BLOCK_P)
    y, x = first_y + cell // TILE, first_x + cell % TILE
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((TILE * TILE, BLOCK_C), tl.float32)
    number = tl.min(tl.where(hits, index, BLOCK_R))
    while number < BLOCK_R:
        hit = (image * regions_per_image + number).to(tl.int64)
        x0, y0, pixel_width, pixel_height = _bins(regions_ptr, hit, level, FINEST, S)
        for first in range(0, S * S, BLOCK_P):
            row, column = (first + pixel) // S, (first + pixel) % S
            weights = _axis_weights(y.to(tl.float32)[:, None], height, y0, pixel_height, row[None], SAMPLES)
            weights *= _axis_weights(x.to(tl.float32)[:, None], width, x0, pixel_width, column[None], SAMPLES)
            source_ptr = dy_ptr + (hit * S * S + first + pixel)[:, None] * C + channel[None]
            mask = ((first + pixel) < S * S)[:, None] & (channel < C)[None]
            dy = tl.load(source_ptr, mask=mask, other=0.0)
            total += tl.dot(weights.to(dy.dtype), dy, input_precision="ieee")
        number = tl.min(tl.where(hits & (index > number), index, BLOCK_R))
    target_ptr = _of_level(level, dx0_ptr, dx1_ptr, dx2_ptr, dx3_ptr)
    target_ptr += ((image.to(tl.int64) * height + y) * width + x)[:, None] * C + channel[None]
    mask = ((y < height) & (x < width))[:, None] & (channel < C)[None]
    tl.store(target_ptr, total.to(dx0_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _of_level(level, x0_ptr, x1_ptr, x2_ptr, x3_ptr):
    return tl.where(level < 2, tl.where(level == 0, x0_ptr, x1_ptr), tl.where(level == 2, x2_ptr, x3_ptr))


@triton.jit
def _bins(regions_ptr, region, level, FINEST: tl.constexpr, S: tl.constexpr):
    """Return left and top of a region on its map, and the width and height of its pooled pixels, in cells."""
    box_ptr, scale = regions_ptr + region * 4, (1.0 / FINEST) / (1 << level).to(tl.float32)
    left, top = tl.load(box_ptr) * scale, tl.load(box_ptr + 1) * scale
    # The reference enlarges regions to at least one cell.
    bin_width = tl.maximum(tl.load(box_ptr + 2) * scale - left, 1.0) / S
    bin_height = tl.maximum(tl.load(box_ptr + 3) * scale - top, 1.0) / S
    return left, top, bin_width, bin_height


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
def _axis_weights(cell, cells, start, bin_size, bin, SAMPLES: tl.constexpr):
    """Return the weights of cells along one axis in the means of the bins' samples, which start at `start`."""
    weights = tl.zeros_like(cell + bin * bin_size)
    for sample in tl.static_range(SAMPLES):
        point = start + (bin + (sample + 0.5) / SAMPLES) * bin_size
        inside = (point >= -1.0) & (point <= cells)
        point = tl.minimum(tl.maximum(point, 0.0), cells - 1.0)
        weights += tl.where(inside, tl.maximum(1.0 - tl.abs(cell - point), 0.0), 0.0) / SAMPLES
    return weights


@triton.jit
def _rasterize(
    edges_ptr, last_ptr, begin_ptr, objects_ptr, regions_ptr, out_ptr, SIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Write 1 for each pixel of a region that is inside its object, else 0: below an odd number of edges."""
    region = tl.program_id(0)
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None]
    box_ptr = regions_ptr + region * 4
    left, top = tl.load(box_ptr), tl.load(box_ptr + 1)
    ratio_x = (SIDE / tl.maximum(tl.load(box_ptr + 2) - left, 1.0).to(tl.float64)).to(tl.float32)
    ratio_y = (SIDE / tl.maximum(tl.load(box_ptr + 3) - top, 1.0).to(tl.float64)).to(tl.float32)
    x, y = (5 * column + 2).to(tl.float64), (5 * row + 2).to(tl.float64)
    number = tl.load(objects_ptr + region)
    inside = tl.zeros((BLOCK, BLOCK), tl.int32)
    odd = tl.zeros((BLOCK, BLOCK), tl.int32)
    for edge in range(tl.load(begin_ptr + number), tl.load(begin_ptr + number + 1)):
        x0 = _to_fifths(tl.load(edges_ptr + edge * 4), left, ratio_x)
        y0 = _to_fifths(tl.load(edges_ptr + edge * 4 + 1), top, ratio_y)
        x1 = _to_fifths(tl.load(edges_ptr + edge * 4 + 2), left, ratio_x)
        y1 = _to_fifths(tl.load(edges_ptr + edge * 4 + 3), top, ratio_y)
        first, crossed = _first_fifth(x0, y0, x1, y1, x)
        odd = odd ^ (crossed & (first <= y)).to(tl.int32)
        done = tl.load(last_ptr + edge).to(tl.int32)
        inside = inside | (odd * done)
        odd = odd * (1 - done)
    target_ptr = out_ptr + region.to(tl.int64) * SIDE * SIDE + row * SIDE + column
    tl.store(target_ptr, inside.to(tl.float32), mask=(row < SIDE) & (column < SIDE))


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
def _to_fifths(coordinate, low, ratio):
    return (((coordinate - low) * ratio).to(tl.float64) * 5.0 + 0.5).to(tl.int32).to(tl.float64)
