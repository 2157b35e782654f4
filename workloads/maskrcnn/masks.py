"""What a region's mask should be, drawn from outlines on the device: no bitmap of an image is ever made in training.

Shapes: I objects, E edges of all their outlines, R regions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import kernels

SIDE = 28  # pixels of a target


class Outlines(NamedTuple):
    """Closed outlines of I objects as edges: float32 [E, 4] from x, y to x, y in pixels of the image.

    An object's edges are `begin`[i] to `begin`[i + 1], int64 [I + 1]. `last` bool [E] ends a polygon; inside of it is
    what an odd number of its edges lie left of, so that it can have holes, and may lack the edges that lie level. An
    object is all that any of its polygons covers.
    """

    edges: Tensor
    last: Tensor
    begin: Tensor


def targets(outlines: Outlines, objects: Tensor, regions: Tensor) -> Tensor:
    """float32 [R, 28, 28]: 1 where the middle of a region's pixel lies in its object, else 0.

    `objects` int64 [R] are numbers of objects, `regions` float32 [R, 4] corners with inclusive widths.
    """
    if kernels.available(regions):
        return kernels.fill(outlines.edges, outlines.last, outlines.begin, objects, regions, SIDE)
    made = torch.zeros(len(regions), SIDE, SIDE)
    middle = (torch.arange(SIDE) + 0.5) / SIDE
    for place, (number, region) in enumerate(zip(objects.tolist(), regions, strict=True)):
        x = region[0] + middle * (region[2] - region[0] + 1)
        y = (region[1] + middle * (region[3] - region[1] + 1))[:, None]
        some = slice(int(outlines.begin[number]), int(outlines.begin[number + 1]))
        odd = torch.zeros(SIDE, SIDE, dtype=torch.bool)
        for (x0, y0, x1, y1), last in zip(outlines.edges[some].tolist(), outlines.last[some].tolist(), strict=True):
            if y0 != y1:
                odd ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) * ((x1 - x0) / (y1 - y0)))
            if last:
                made[place][odd] = 1.0
                odd = torch.zeros_like(odd)
    return made
