"""SSD's color jitter in NVIDIA DALI's operators: torchvision's adjustments, rounded as it rounds (color_jitter.py).

DALI's own operators shift the hue in another color space: together they differ by 5 of 255 on average.
"""

from typing import Any

import numpy as np
from nvidia.dali import fn, math, types

# Matrices on (red, green, blue), row by row: the gray level, and for each color the next minus the previous one.
_GRAY = [0.2989, 0.587, 0.114]
_NEXT_MINUS_PREVIOUS = [0.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0]
_HUES = np.array([0, 2, 4], np.float32)  # in sixths of a turn


def jitter(pixels: Any, factors: Any, order: Any) -> Any:
    """Adjust the colors of pixels uint8 [H, W, 3].

    factors float32 [4]: brightness, contrast and saturation, 1 for no change, and the hue's shift in turns. order int
    [4]: the indices 0..3 of these in the order of use. Both are on the CPU.
    """
    if pixels.device == "gpu":
        factors = factors.gpu()  # the order stays on the CPU, where conditions are evaluated
    for position in range(4):
        step = order[position]
        if step == 0:
            pixels = _floor(factors[0] * pixels)
        elif step == 1:
            pixels = _blend(pixels, fn.reductions.mean(_gray(pixels)), factors[1])
        elif step == 2:
            pixels = _blend(pixels, _gray(pixels), factors[2])
        else:
            pixels = _shift_hue(pixels, factors[3])
    return pixels


def _floor(values: Any) -> Any:
    """Round down to uint8, saturating at 0 and 255."""
    return fn.cast(math.floor(values), dtype=types.UINT8)


def _gray(pixels: Any) -> Any:
    return math.floor(fn.coord_transform(pixels, M=_GRAY))


def _blend(pixels: Any, other: Any, factor: Any) -> Any:
    return _floor(factor * pixels + (1.0 - factor) * other)


def _shift_hue(pixels: Any, shift: Any) -> Any:
    """Shift the hue by `shift` turns, in HSV."""
    hues = types.Constant(_HUES, device=pixels.device)
    highest, lowest = (extreme(pixels, axes=2, keep_dims=True) for extreme in (fn.reductions.max, fn.reductions.min))
    chroma = highest - lowest
    hue_by_channel = hues + fn.coord_transform(pixels, M=_NEXT_MINUS_PREVIOUS) / math.max(chroma, 1.0)
    hue = fn.reductions.max(hue_by_channel - 9.0 * (pixels < highest), axes=2, keep_dims=True)  # 9 exceeds every hue
    hue = hue + 6.0 * shift
    hue = hue - 6.0 * math.floor(hue / 6.0)
    # A channel is highest within a sixth of a turn of its own hue, and lowest within one of the opposite hue.
    distance = math.abs(math.abs(hue - hues) - 3.0)
    fraction = math.clamp(distance - 1.0, 0.0, 1.0)
    return _floor((lowest + chroma * fraction) * (255.999 / 255.0))
