"""Which part of an image is seen: boxes (top, left, height, width) in pixels, resized to the network's square after."""

import math

import numpy as np

from ..vision.decode_workers import Box

_TRIES = 100  # of a random crop, before the whole image is taken
_ASPECT = (0.75, 1.33)
_SHOWN = 7 / 8  # of the short side: MLPerf resizes it to 256 and cuts 224 out of the middle


def random_crop_box(height: int, width: int, min_crop_area: float, generator: np.random.Generator) -> Box:
    """MLPerf's training crop, of at least the share `min_crop_area` of the image (mlperf.md 12.1).

    The aspect is uniform from 3/4 to 4/3, and then the height, not the area, is uniform over what fits: so draws
    TensorFlow's `sample_distorted_bounding_box`, which the references call, and half of the crops see less than 0.36.
    """
    whole = height * width
    for _ in range(_TRIES):
        aspect = generator.uniform(*_ASPECT)
        least, most = (math.sqrt(area / aspect) for area in (min_crop_area * whole, whole))
        most = min(most, height, (width + 0.5) / aspect)
        if round(least) > int(most):
            continue
        tall = int(generator.integers(round(least), int(most) + 1))
        wide = round(tall * aspect)
        if wide <= width and min_crop_area * whole <= tall * wide <= whole:
            top, left = generator.integers(height - tall + 1), generator.integers(width - wide + 1)
            return int(top), int(left), tall, wide
    return 0, 0, height, width


def center_crop_box(height: int, width: int) -> Box:
    """MLPerf's evaluation crop, cut out before the resize rather than after it: the same view, decoded once less."""
    edge = max(1, round(min(height, width) * _SHOWN))
    return (height - edge) // 2, (width - edge) // 2, edge, edge
