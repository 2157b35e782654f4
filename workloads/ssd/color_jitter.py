"""How SSD changes an image's colours: brightness, contrast, saturation and hue, in an order drawn for each image.

mlperf.md 12.2 names torchvision's `ColorJitter(brightness=.125, contrast=.5, saturation=.5, hue=.05)`.
"""

import numpy as np
from torch import Tensor
from torchvision.transforms import functional

_SPREADS = (0.125, 0.5, 0.5)  # of brightness, contrast and saturation around 1
_HUE = 0.05  # turns each way
_STEPS = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)
Factors = tuple[float, float, float, float]
Order = tuple[int, int, int, int]


def jitter_factors(generator: np.random.Generator) -> tuple[Factors, Order]:
    """Factors of brightness, contrast and saturation, the hue's shift in turns, and the order of these (0..3).

    Drawn as ColorJitter draws, by another generator. float32's numbers, so that the card and the CPU see the same.
    """
    first, second, third, last = generator.permutation(4).tolist()
    drawn = [generator.uniform(max(0.0, 1 - spread), 1 + spread) for spread in _SPREADS]
    brightness, contrast, saturation = np.array(drawn, np.float32).tolist()
    hue = float(np.float32(generator.uniform(-_HUE, _HUE)))
    return (brightness, contrast, saturation, hue), (first, second, third, last)


def jitter_one(pixels: Tensor, factors: Factors, order: Order) -> Tensor:
    """uint8 [H, W, 3] of pixels uint8 [H, W, 3] on the CPU, by torchvision's functions on uint8 tensors.

    MLPerf's reference calls them on Pillow's images, where each step rounds in its own way.
    """
    image = pixels.permute(2, 0, 1)
    for step in order:
        image = _STEPS[step](image, factors[step])
    return image.permute(1, 2, 0).contiguous()
