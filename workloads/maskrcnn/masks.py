"""Rasterize the mask targets of regions from polygons on the device; training never makes a bitmap of an image.

Shapes: I objects, E edges of all their polygons, R regions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import kernels

SIDE = 28  # pixels of a target


class Outlines(NamedTuple):
    """Closed polygons of I objects as edges: float32 [E, 4] from x, y to x, y in pixels of the image.

    Object i has the edges `begin`[i] to `begin`[i + 1], int64 [I + 1]. `last` bool [E] marks the last edge of a
    polygon. A point is inside a polygon if it lies left of an odd number of its edges, so a polygon can have holes, and
    horizontal edges may be missing. An object is the union of its polygons.
    """

    edges: Tensor
    last: Tensor
    begin: Tensor


def mask_targets(outlines: Outlines, objects: Tensor, regions: Tensor) -> Tensor:
    """Return float32 [R, 28, 28]: 1 where the center of a region's pixel lies in its object, else 0.

    `objects` int64 [R] are indices of objects, `regions` float32 [R, 4] corners with inclusive right and bottom.
    """
    if kernels.triton_available(regions):
        return kernels.rasterize(outlines.edges, outlines.last, outlines.begin, objects, regions, SIDE)
    targets = torch.zeros(len(regions), SIDE, SIDE)
    centers = (torch.arange(SIDE) + 0.5) / SIDE
    for target, number, region in zip(targets, objects.tolist(), regions, strict=True):
        x = region[0] + centers * (region[2] - region[0] + 1)
        y = (region[1] + centers * (region[3] - region[1] + 1))[:, None]
        edges = slice(int(outlines.begin[number]), int(outlines.begin[number + 1]))
        odd = torch.zeros(SIDE, SIDE, dtype=torch.bool)
        for (x0, y0, x1, y1), last in zip(outlines.edges[edges].tolist(), outlines.last[edges].tolist(), strict=True):
            if y0 != y1:
                odd ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) * ((x1 - x0) / (y1 - y0)))
            if last:
                target[odd] = 1.0
                odd = torch.zeros_like(odd)
    return targets
