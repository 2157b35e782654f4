"""Which part of an image is seen: boxes (top, left, height, width) in pixels, resized to the network's square after."""

import math

import numpy as np

Box = tuple[int, int, int, int]

_TRIES = 100  # of a random crop, before the whole image is taken
_ASPECT = (0.75, 1.33)
_SHOWN = 7 / 8  # of the short side: MLPerf resizes it to 256 and cuts 224 out of the middle


def random_box(height: int, width: int, least_area: float, generator: np.random.Generator) -> Box:
    """MLPerf's training crop: area from `least_area` to 1 and aspect from 3/4 to 4/3 at random (mlperf.md 12.1)."""
    for _ in range(_TRIES):
        area, aspect = generator.uniform(least_area, 1) * height * width, generator.uniform(*_ASPECT)
        tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < tall <= height and 0 < wide <= width:
            top, left = generator.integers(height - tall + 1), generator.integers(width - wide + 1)
            return int(top), int(left), tall, wide
    return 0, 0, height, width


def centre_box(height: int, width: int) -> Box:
    """MLPerf's evaluation crop, cut out before the resize rather than after it: the same view, decoded once less."""
    edge = max(1, round(min(height, width) * _SHOWN))
    return (height - edge) // 2, (width - edge) // 2, edge, edge
