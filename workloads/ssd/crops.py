"""Which part of an image SSD trains on: a crop that all boxes overlap enough, drawn in the reference's order of tries.

mlperf.md 12.2. Boxes are fractions of the image: left, top, right, bottom. Shapes: M boxes of an image.
"""

import numpy as np
from numpy.typing import NDArray

# The whole image; a crop that every box overlaps by more than so much; any crop.
_OPTIONS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, -1.0)
_LEAST = 0.3  # of the image's width and height
_ASPECTS = (0.5, 2.0)
Box = tuple[float, float, float, float]


def crop(
    boxes: NDArray[np.float64], generator: np.random.Generator, tries: int
) -> tuple[Box, NDArray[np.int64], NDArray[np.float64]]:
    """The crop; the numbers of the boxes that it keeps, whose centres lie inside; and these as fractions of it, [K, 4].

    An option is drawn, then up to `tries` crops, then another option, until one will do. An image without a box is
    taken whole.
    """
    whole = (0.0, 0.0, 1.0, 1.0)
    every = np.arange(len(boxes))
    if not len(boxes):
        return whole, every, boxes
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    while True:
        limit = _OPTIONS[int(generator.integers(len(_OPTIONS)))]
        if limit is None:
            return whole, every, boxes
        for _ in range(tries):
            width, height = generator.uniform(_LEAST, 1), generator.uniform(_LEAST, 1)
            if not _ASPECTS[0] <= width / height <= _ASPECTS[1]:
                continue
            left, top = generator.uniform(0, 1 - width), generator.uniform(0, 1 - height)
            part = np.array([left, top, left + width, top + height])
            if _overlaps(part, boxes).min() <= limit:
                continue
            inside = ((centres > part[:2]) & (centres < part[2:])).all(1)
            if inside.any():
                kept = np.clip(boxes[inside], np.tile(part[:2], 2), np.tile(part[2:], 2))
                size = np.tile([width, height], 2)
                return tuple(part.tolist()), every[inside], (kept - np.tile(part[:2], 2)) / size


def _overlaps(part: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union [M] of one box [4] with boxes [M, 4]."""
    low, high = np.maximum(part[:2], boxes[:, :2]), np.minimum(part[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], 1) + np.prod(part[2:] - part[:2])
    return shared / np.maximum(area - shared, 1e-12)
