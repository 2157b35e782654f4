"""SSD's changes of colour in NVIDIA DALI's operators: torchvision's steps, rounded as it rounds (`colours.py`).

DALI has operators by these names, but its hue turns another colour space: together they are 5 of 255 off on average.
"""

from typing import Any

import numpy as np
from nvidia.dali import fn, math, types

# Of red, green and blue, as matrices line by line: the grey level, and each colour's next less the one before it.
_GREY = [0.2989, 0.587, 0.114]
_NEXT_LESS_LAST = [0.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0]
_HUES = np.array([0, 2, 4], np.float32)  # in sixths of a turn


def jitter(pixels: Any, factors: Any, order: Any) -> Any:
    """uint8 [H, W, 3] of pixels uint8 [H, W, 3], colours changed as the image's factors and order say.

    factors float32 [4]: brightness, contrast and saturation, 1 for no change, and the hue's shift in turns; order int
    [4]: the numbers 0..3 of these in the order of their use. These two are on the CPU.
    """
    if pixels.device == "gpu":
        factors = factors.gpu()  # the order stays where conditions are looked at
    for place in range(4):
        step = order[place]
        if step == 0:
            pixels = _floor(factors[0] * pixels)
        elif step == 1:
            pixels = _blend(pixels, fn.reductions.mean(_grey(pixels)), factors[1])
        elif step == 2:
            pixels = _blend(pixels, _grey(pixels), factors[2])
        else:
            pixels = _turn(pixels, factors[3])
    return pixels


def _floor(levels: Any) -> Any:
    """As uint8, of which the least and the greatest stand for what is beyond."""
    return fn.cast(math.floor(levels), dtype=types.UINT8)


def _grey(pixels: Any) -> Any:
    return math.floor(fn.coord_transform(pixels, M=_GREY))


def _blend(pixels: Any, other: Any, factor: Any) -> Any:
    return _floor(factor * pixels + (1.0 - factor) * other)


def _turn(pixels: Any, shift: Any) -> Any:
    """Pixels whose hue is shifted by so many turns, by way of HSV."""
    hues = types.Constant(_HUES, device=pixels.device)
    most, least = (extreme(pixels, axes=2, keep_dims=True) for extreme in (fn.reductions.max, fn.reductions.min))
    spread = most - least
    by_each = hues + fn.coord_transform(pixels, M=_NEXT_LESS_LAST) / math.max(spread, 1.0)
    by_highest = fn.reductions.max(by_each - 9.0 * (pixels < most), axes=2, keep_dims=True)  # 9 is more than any
    hue = by_highest + 6.0 * shift
    hue = hue - 6.0 * math.floor(hue / 6.0)
    # A colour is highest up to a sixth of a turn from its own hue, and least up to one from the opposite.
    from_opposite = math.abs(math.abs(hue - hues) - 3.0)
    share = math.clamp(from_opposite - 1.0, 0.0, 1.0)
    return _floor((least + spread * share) * (255.999 / 255.0))
