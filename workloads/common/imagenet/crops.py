"""Crop boxes (top, left, height, width) in pixels; a transform resizes the crops to the network's square."""

import math

import numpy as np

from ..vision.pipeline import Box

_ATTEMPTS = 100  # random crops drawn before the whole image is taken
_ASPECT_RATIO = (0.75, 1.33)
_CENTER_FRACTION = 7 / 8  # of the short side: MLPerf resizes it to 256 and takes the central 224


def random_crop_box(height: int, width: int, min_crop_area: float, generator: np.random.Generator) -> Box:
    """Draw MLPerf's training crop, of at least the fraction `min_crop_area` of the image.

    The aspect ratio is uniform from 3/4 to 4/3, then the height (not the area) is uniform over what fits. This is how
    TensorFlow's `sample_distorted_bounding_box` draws, which the references call (docs/mlperf_rules.md, "ResNet-50").
    Half of the crops cover less than 0.36 of the image.
    """
    area = height * width
    for _ in range(_ATTEMPTS):
        aspect_ratio = generator.uniform(*_ASPECT_RATIO)
        min_height, max_height = (math.sqrt(crop_area / aspect_ratio) for crop_area in (min_crop_area * area, area))
        max_height = min(max_height, height, (width + 0.5) / aspect_ratio)
        if round(min_height) > int(max_height):
            continue
        crop_height = int(generator.integers(round(min_height), int(max_height) + 1))
        crop_width = round(crop_height * aspect_ratio)
        if crop_width <= width and min_crop_area * area <= crop_height * crop_width <= area:
            top, left = generator.integers(height - crop_height + 1), generator.integers(width - crop_width + 1)
            return int(top), int(left), crop_height, crop_width
    return 0, 0, height, width


def center_crop_box(height: int, width: int) -> Box:
    """Return MLPerf's evaluation crop, taken before the resize instead of after it: the same part of the image."""
    edge = max(1, round(min(height, width) * _CENTER_FRACTION))
    return (height - edge) // 2, (width - edge) // 2, edge, edge
