"""SSD's color jitter: brightness, contrast, saturation and hue, in an order drawn for each image.

MLPerf's reference uses torchvision's `ColorJitter(brightness=.125, contrast=.5, saturation=.5, hue=.05)`
(docs/mlperf_rules.md, "SSD").
"""

import numpy as np
from torch import Tensor

_RANGES = (0.125, 0.5, 0.5)  # of brightness, contrast and saturation around 1
_HUE_RANGE = 0.05  # of the hue's shift around 0, in turns
_ADJUSTMENTS = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
Factors = tuple[float, float, float, float]
Order = tuple[int, int, int, int]


def jitter_factors(generator: np.random.Generator) -> tuple[Factors, Order]:
    """Draw the factors of brightness, contrast and saturation, the hue's shift in turns, and the order of the four.

    The distribution is ColorJitter's, the generator is not. Factors are rounded to float32, so that GPU and CPU use the
    same.
    """
    first, second, third, last = generator.permutation(4).tolist()
    drawn = [generator.uniform(max(0.0, 1 - limit), 1 + limit) for limit in _RANGES]
    brightness, contrast, saturation = np.array(drawn, np.float32).tolist()
    hue = float(np.float32(generator.uniform(-_HUE_RANGE, _HUE_RANGE)))
    return (brightness, contrast, saturation, hue), (first, second, third, last)


def jitter_image(pixels: Tensor, factors: Factors, order: Order) -> Tensor:
    """Adjust the colors of one image uint8 [H, W, 3] on the CPU, by torchvision's functions for uint8 tensors.

    MLPerf's reference calls them on Pillow images, where each adjustment rounds in its own way.
    """
    from torchvision.transforms import functional  # which takes seconds

    image = pixels.permute(2, 0, 1)
    for step in order:
        image = getattr(functional, _ADJUSTMENTS[step])(image, factors[step])
    return image.permute(1, 2, 0).contiguous()
