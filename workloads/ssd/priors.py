"""Prior boxes (default boxes) of SSD, their matching and the box encoding (docs/mlperf_rules.md, "SSD").

Boxes are fractions of the image's width and height. Shapes: P priors, M boxes per image, N images.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

CENTER_VARIANCE, SIZE_VARIANCE = 0.1, 0.2  # deltas are divided by these
_REFERENCE_SIZE = 300.0  # pixels: the image size for which strides and scales are given
_STRIDES = (8, 16, 32, 64, 100, 300)
_SCALES = (21, 45, 99, 153, 207, 261, 315)
_ASPECT_RATIOS: Sequence[Sequence[int]] = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
PRIORS_PER_CELL = tuple(2 + 2 * len(ratios) for ratios in _ASPECT_RATIOS)  # of each feature map
_MATCH_THRESHOLD = 0.5


def prior_boxes(map_sizes: Sequence[int]) -> Tensor:
    """Return float32 [P, 4]: center x, center y, width, height of the priors of square feature maps, clipped to 0..1.

    The order is maps, rows, columns, shapes. Maps of 38, 19, 10, 5, 3 and 1 cells have 8,732 priors. A map of another
    size than the reference's has cells of equal size.
    """
    boxes = []
    for level, cells in enumerate(map_sizes):
        reference_cells = _REFERENCE_SIZE / _STRIDES[level]
        step = 1 / reference_cells if cells == math.ceil(reference_cells) else 1 / cells
        shapes = _prior_shapes(level)
        for row, column in itertools.product(range(cells), repeat=2):
            boxes += [((column + 0.5) * step, (row + 0.5) * step, width, height) for width, height in shapes]
    return torch.tensor(boxes).clamp_(0, 1)


def _prior_shapes(level: int) -> list[tuple[float, float]]:
    """Return widths and heights: a square, one between it and the next map's, then each aspect ratio both ways."""
    size, next_size = _SCALES[level] / _REFERENCE_SIZE, _SCALES[level + 1] / _REFERENCE_SIZE
    mean_size = math.sqrt(size * next_size)
    shapes = [(size, size), (mean_size, mean_size)]
    for ratio in _ASPECT_RATIOS[level]:
        long_side, short_side = size * math.sqrt(ratio), size / math.sqrt(ratio)
        shapes += [(long_side, short_side), (short_side, long_side)]
    return shapes


def to_corners(boxes: Tensor) -> Tensor:
    """Convert [..., 4] center x, center y, width, height to left, top, right, bottom."""
    center, half_size = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([center - half_size, center + half_size], -1)


def to_centers(boxes: Tensor) -> Tensor:
    """Convert [..., 4] left, top, right, bottom to center x, center y, width, height."""
    top_left, bottom_right = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(top_left + bottom_right) / 2, bottom_right - top_left], -1)


def encode(boxes: Tensor, prior_boxes: Tensor) -> Tensor:
    """Return the deltas [..., 4] of center-format boxes from priors: offsets over the prior's size, and log sizes."""
    offset = (boxes[..., :2] - prior_boxes[..., :2]) / prior_boxes[..., 2:] / CENTER_VARIANCE
    return torch.cat([offset, (boxes[..., 2:] / prior_boxes[..., 2:]).log() / SIZE_VARIANCE], -1)


def decode(deltas: Tensor, prior_boxes: Tensor) -> Tensor:
    """Return the center-format boxes [..., 4] of `deltas`, the inverse of `encode`."""
    center = deltas[..., :2] * CENTER_VARIANCE * prior_boxes[..., 2:] + prior_boxes[..., :2]
    return torch.cat([center, (deltas[..., 2:] * SIZE_VARIANCE).exp() * prior_boxes[..., 2:]], -1)


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union [..., P, M] of corner boxes [..., P, 4] and [..., M, 4]; 0 for empty boxes."""
    boxes, others = boxes[..., :, None, :], others[..., None, :, :]
    top_left = torch.maximum(boxes[..., :2], others[..., :2])
    bottom_right = torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = (bottom_right - top_left).clamp(min=0).prod(-1)
    area, other_area = ((side[..., 2:] - side[..., :2]).prod(-1) for side in (boxes, others))
    return intersection / (area + other_area - intersection).clamp(min=1e-12)


def match(boxes: Tensor, labels: Tensor, prior_boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the center-format target box [N, P, 4] and the label [N, P] of each prior; label 0 is the background.

    `boxes` are corners [N, M, 4]; `labels` [N, M] are 0 where an image has fewer boxes. A prior is assigned the box of
    its largest IoU if that exceeds 0.5. The prior of a box's largest IoU is assigned that box in any case; if several
    boxes have the same best prior, the last one gets it.
    """
    ious = iou(to_corners(prior_boxes), boxes).masked_fill((labels == 0)[:, None], -1.0)
    best_iou, box_index = ious.max(2)
    best_prior = ious.argmax(1)  # [N, M]
    # No scatter: when boxes share a best prior, which write comes last is undefined on some devices.
    prior_index = torch.arange(prior_boxes.shape[0], device=boxes.device)
    order = torch.arange(1, boxes.shape[1] + 1, device=boxes.device)
    is_best = (best_prior[:, None] == prior_index[:, None]) & (labels != 0)[:, None]
    forced = (is_best * order).amax(2)  # 1 + index of the last box whose best prior this is; 0 for none
    box_index = torch.where(forced > 0, forced - 1, box_index)
    matched_labels = torch.where((best_iou > _MATCH_THRESHOLD) | (forced > 0), labels.gather(1, box_index), 0)
    return to_centers(boxes.gather(1, box_index[..., None].expand(-1, -1, 4))), matched_labels
