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

    An option is drawn, then up to `tries` crops, then another option, until one will do: all tries of an option are
    drawn and judged at once. An image without a box is taken whole.
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
        drawn = generator.random((tries, 4))
        size = _LEAST + (1 - _LEAST) * drawn[:, :2]
        low = drawn[:, 2:] * (1 - size)
        high, aspect = low + size, size[:, 0] / size[:, 1]
        beyond = np.concatenate([centres - low[:, None], high[:, None] - centres], 2)  # how far inside each edge
        inside = beyond.min(2) > 0
        good = (_ASPECTS[0] <= aspect) & (aspect <= _ASPECTS[1]) & inside.any(axis=1)
        good &= _overlaps(low, high, boxes).min(1) > limit
        if good.any():
            best = int(good.argmax())  # the first
            corner, kept = np.tile(low[best], 2), boxes[inside[best]]
            kept = np.clip(kept, corner, np.tile(high[best], 2))
            part = (*low[best].tolist(), *high[best].tolist())
            return part, every[inside[best]], (kept - corner) / np.tile(size[best], 2)


def _overlaps(low: NDArray[np.float64], high: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union [N, M] of parts, from low to high [N, 2], with boxes [M, 4]."""
    sides = np.minimum(high[:, None], boxes[:, 2:]) - np.maximum(low[:, None], boxes[:, :2])
    shared = np.maximum(sides, 0).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (high - low).prod(1)[:, None]
    return shared / np.maximum(area - shared, 1e-12)
