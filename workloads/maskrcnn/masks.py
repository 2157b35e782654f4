"""Rasterize the mask targets of regions from polygons on the device; training never makes a bitmap of an image.

The targets are those of MLPerf's reference, which crops and scales an object's polygons to 28 x 28 pixels and
rasterizes them by pycocotools (docs/mlperf_rules.md, "Mask R-CNN"): corners are rounded to fifths of a pixel, an edge
is a chain of such fifths, one in each column or row, whichever are more, and a pixel is inside a polygon if the chains
cross its column, at two fifths of its width, an odd number of times at or above two fifths of its height.

Shapes: I objects, E edges of all their polygons, R regions, P pairs of a region and an edge of its object.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...runner.hardware import devices
from ..common.nn.triton_support import triton_available
from . import kernels

SIDE = 28  # pixels of a target
_FIFTHS = 5  # steps of a pixel to which corners are rounded
_CENTER = 2  # the fifth of a pixel at which it is inside or outside


class Outlines(NamedTuple):
    """Closed polygons of I objects as edges: float32 [E, 4] from x, y to x, y in pixels of the image.

    Object i has the edges `begin`[i] to `begin`[i + 1], int64 [I + 1]. `last` bool [E] marks the last edge of a
    polygon. A point is inside a polygon if it lies below an odd number of its edges, so a polygon can have holes, and
    vertical edges may be missing. An object is the union of its polygons. Edges from `begin`[I] on are padding.
    """

    edges: Tensor
    last: Tensor
    begin: Tensor


def mask_targets(outlines: Outlines, objects: Tensor, regions: Tensor) -> Tensor:
    """Return float32 [R, 28, 28]: 1 where a region's pixel is inside its object, else 0.

    `objects` int64 [R] are indices of objects, `regions` float32 [R, 4] corners. The reference divides a region by
    right - left and bottom - top, at least 1, though its boxes are one pixel wider.
    """
    if devices.has_float64(regions.device) and triton_available(regions):
        return kernels.rasterize(outlines.edges, outlines.last, outlines.begin, objects, regions, SIDE)
    edges, last, begin = (tensor.cpu() for tensor in outlines)
    pair_region, pair_edge = _pairs(begin, objects.cpu())
    column = torch.arange(SIDE)
    row, crossed = _first_rows(_to_fifths(edges[pair_edge], regions.cpu()[pair_region]), column)
    ends = last[pair_edge]
    polygon = ends.cumsum(0) - ends.long()
    crossings = torch.zeros(int(ends.sum()), SIDE + 1, SIDE, dtype=torch.int32)
    crossings.index_put_((polygon[:, None], row, column), crossed.int(), accumulate=True)
    inside = crossings.cumsum(1)[:, :SIDE] % 2
    targets = torch.zeros(len(regions), SIDE, SIDE).index_add_(0, pair_region[ends], inside.float())
    return targets.clamp_(max=1.0).to(regions.device)


def _pairs(begin: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
    """Return the region and the edge of each pair, int64 [P], by region."""
    counts = begin.diff()[objects]
    region = torch.arange(len(objects)).repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    return region, torch.arange(len(region)) - before[region] + begin[objects][region]


def _to_fifths(edges: Tensor, regions: Tensor) -> Tensor:
    """Return edges [P, 4] in fifths of their region's pixels, whole numbers as float64; float32 as in the reference."""
    ratio = (SIDE / (regions[:, 2:] - regions[:, :2]).clamp(min=1).double()).float()
    points = (edges - regions[:, :2].repeat(1, 2)) * ratio.repeat(1, 2)
    return (points.double() * _FIFTHS + 0.5).trunc()


def _first_rows(edges: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """Return int64 [P, 28], the first row below an edge in each pixel column, and bool [P, 28], whether it crosses it.

    An edge crosses a column on its way from one fifth to the next. In float64, pycocotools' roundings are the same.
    """
    x0, y0, x1, y1 = edges[:, :, None].unbind(1)
    steep = (x1 - x0).abs() < (y1 - y0).abs()
    swap = torch.where(steep, y0 > y1, x0 > x1)
    (x0, x1), (y0, y1) = ((torch.where(swap, b, a), torch.where(swap, a, b)) for a, b in ((x0, x1), (y0, y1)))
    length = torch.where(steep, y1 - y0, x1 - x0).clamp(min=1)
    slope = torch.where(steep, x1 - x0, y1 - y0) / length
    x = (_FIFTHS * column + _CENTER).double()
    flat_y = torch.minimum(_at(y0, slope, x - x0), _at(y0, slope, x - x0 + 1))
    # The step at which a steep edge reaches the other side, from an estimate that is at most one step off.
    step = ((x + 0.5 - x0) / torch.where(slope == 0, 1.0, slope)).ceil()
    reached = [(_at(x0, slope, candidate) > x) == (slope > 0) for candidate in (step - 1, step)]
    steep_y = y0 + step - reached[0].double() - reached[1].double()
    row = ((torch.where(steep, steep_y, flat_y) - _CENTER) / _FIFTHS).ceil().clamp(0, SIDE)
    return row.long(), (torch.minimum(x0, x1) <= x) & (x < torch.maximum(x0, x1))


def _at(start: Tensor, slope: Tensor, step: Tensor) -> Tensor:
    """Return the fifth that an edge is in after `step` steps along its longer side."""
    return (start + slope * step + 0.5).floor()
