"""The boxes that SSD starts from, and how boxes are written as differences from them (mlperf.md 12.2).

Boxes are fractions of the image's width and height. Shapes: P priors, M boxes of an image, N images.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

CENTRE, SIZE = 0.1, 0.2  # variances that differences are divided by
_AT = 300.0  # pixels: the size that steps and scales are given for
_STEPS = (8, 16, 32, 64, 100, 300)
_SCALES = (21, 45, 99, 153, 207, 261, 315)
_RATIOS: Sequence[Sequence[int]] = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
SHAPES = tuple(2 + 2 * len(ratios) for ratios in _RATIOS)  # priors of a cell, by map


def priors(maps: Sequence[int]) -> Tensor:
    """float32 [P, 4]: centre x, centre y, width, height of the priors of square feature maps, clipped to the image.

    Order: maps, rows, columns, shapes; 8,732 for maps of 38, 19, 10, 5, 3 and 1. A map of another size than the
    reference's has cells of equal size.
    """
    found = []
    for place, cells in enumerate(maps):
        reference = _AT / _STEPS[place]
        step = 1 / reference if cells == math.ceil(reference) else 1 / cells
        shapes = _shapes(place)
        for row, column in itertools.product(range(cells), repeat=2):
            found += [((column + 0.5) * step, (row + 0.5) * step, width, height) for width, height in shapes]
    return torch.tensor(found).clamp_(0, 1)


def _shapes(place: int) -> list[tuple[float, float]]:
    """Widths and heights of a map's priors: a square, one between it and the next map's, then each ratio both ways."""
    size, larger = _SCALES[place] / _AT, _SCALES[place + 1] / _AT
    between = math.sqrt(size * larger)
    shapes = [(size, size), (between, between)]
    for ratio in _RATIOS[place]:
        wide, narrow = size * math.sqrt(ratio), size / math.sqrt(ratio)
        shapes += [(wide, narrow), (narrow, wide)]
    return shapes


def corners(boxes: Tensor) -> Tensor:
    """[..., 4] left, top, right, bottom of centre x, centre y, width, height."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def centred(boxes: Tensor) -> Tensor:
    """[..., 4] centre x, centre y, width, height of left, top, right, bottom."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Differences [..., 4] of boxes from priors, both centred: offsets by the prior's size, logarithms of the sizes."""
    offset = (boxes[..., :2] - anchors[..., :2]) / anchors[..., 2:] / CENTRE
    return torch.cat([offset, (boxes[..., 2:] / anchors[..., 2:]).log() / SIZE], -1)


def decode(differences: Tensor, anchors: Tensor) -> Tensor:
    """The centred boxes [..., 4] that `encode` was given."""
    centre = differences[..., :2] * CENTRE * anchors[..., 2:] + anchors[..., :2]
    return torch.cat([centre, (differences[..., 2:] * SIZE).exp() * anchors[..., 2:]], -1)


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union [..., P, M] of corner boxes [..., P, 4] and [..., M, 4]; 0 where both are empty."""
    boxes, others = boxes[..., :, None, :], others[..., None, :, :]
    low, high = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    own, theirs = ((side[..., 2:] - side[..., :2]).prod(-1) for side in (boxes, others))
    return shared / (own + theirs - shared).clamp(min=1e-12)


def match(boxes: Tensor, labels: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """For each prior the centred box [N, P, 4] and the label [N, P] that it is to find; label 0 is background.

    `boxes` are corners [N, M, 4], `labels` [N, M], 0 where an image has fewer. A prior takes the box that it overlaps
    most, if by more than a half; the prior that a box overlaps most takes that box in any case, the last of them where
    several boxes want the same.
    """
    shared = overlaps(corners(anchors), boxes).masked_fill((labels == 0)[:, None], -1.0)
    best, chosen = shared.max(2)
    favourite = shared.argmax(1)  # [N, M] priors
    # No scatter: where several boxes have one favourite, which write is the last is not defined on every device.
    number = torch.arange(anchors.shape[0], device=boxes.device)
    order = torch.arange(1, boxes.shape[1] + 1, device=boxes.device)
    wanted = (favourite[:, None] == number[:, None]) & (labels != 0)[:, None]
    forced = (wanted * order).amax(2)  # 1 more than the last box that wants the prior, 0 where none does
    chosen = torch.where(forced > 0, forced - 1, chosen)
    found = torch.where((best > 0.5) | (forced > 0), labels.gather(1, chosen), 0)
    return centred(boxes.gather(1, chosen[..., None].expand(-1, -1, 4))), found
