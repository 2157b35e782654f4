"""SSD's random crops, drawn in the reference's order of attempts (docs/mlperf_rules.md, "SSD").

Boxes are fractions of the image: left, top, right, bottom. Shapes: M boxes of an image, N crops.
"""

import numpy as np
from numpy.typing import NDArray

# Take the whole image (None), or a crop whose IoU with every box is above the limit; any crop has one above -1.
_MIN_IOUS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, -1.0)
_MIN_SIZE = 0.3  # of the image's width and height
_ASPECT_RATIOS = (0.5, 2.0)
Box = tuple[float, float, float, float]


def crop(
    boxes: NDArray[np.float64], generator: np.random.Generator, attempts: int
) -> tuple[Box, NDArray[np.int64], NDArray[np.float64]]:
    """Return a crop, the indices of the K boxes whose centers lie in it, and these boxes as fractions of it, [K, 4].

    An option is drawn, then up to `attempts` crops, then another option, until a crop is good: all attempts of an
    option are drawn and tested at once. An image without a box is taken whole.
    """
    whole = (0.0, 0.0, 1.0, 1.0)
    indices = np.arange(len(boxes))
    if not len(boxes):
        return whole, indices, boxes
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    while True:
        min_iou = _MIN_IOUS[int(generator.integers(len(_MIN_IOUS)))]
        if min_iou is None:
            return whole, indices, boxes
        drawn = generator.random((attempts, 4))
        size = _MIN_SIZE + (1 - _MIN_SIZE) * drawn[:, :2]
        low = drawn[:, 2:] * (1 - size)
        high, aspect_ratio = low + size, size[:, 0] / size[:, 1]
        distances = np.concatenate([centers - low[:, None], high[:, None] - centers], 2)  # from each edge, inwards
        inside = distances.min(2) > 0
        good = (_ASPECT_RATIOS[0] <= aspect_ratio) & (aspect_ratio <= _ASPECT_RATIOS[1]) & inside.any(axis=1)
        good &= _iou(low, high, boxes).min(1) > min_iou
        if good.any():
            first = int(good.argmax())
            corner = np.tile(low[first], 2)
            kept = np.clip(boxes[inside[first]], corner, np.tile(high[first], 2))
            chosen = (*low[first].tolist(), *high[first].tolist())
            return chosen, indices[inside[first]], (kept - corner) / np.tile(size[first], 2)


def _iou(low: NDArray[np.float64], high: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intersection over union [N, M] of crops, from low to high [N, 2], with boxes [M, 4]."""
    overlap = np.minimum(high[:, None], boxes[:, 2:]) - np.maximum(low[:, None], boxes[:, :2])
    intersection = np.maximum(overlap, 0).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (high - low).prod(1)[:, None]
    return intersection / np.maximum(area - intersection, 1e-12)
