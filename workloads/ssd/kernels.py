"""SSD's training images on the card: colours jittered, a batch at a time.

Shapes: N images, H by W pixels. What leaves a kernel is the same every time: no sum depends on who comes first.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of PyTorch for the CPU and for macOS have none
    triton = None

_PIXELS = 512  # that a program jitters

if triton is not None:

    @triton.jit
    def _grey(r, g, b):
        return tl.floor(0.2989 * r + 0.587 * g + 0.114 * b)

    @triton.jit
    def _blend(value, other, factor):
        return tl.floor(tl.minimum(tl.maximum(factor * value + (1.0 - factor) * other, 0.0), 255.0))

    @triton.jit
    def _sector(value, mixed, low, sector, FIRST: tl.constexpr):
        """A colour of HSV: highest in sectors FIRST and the one before, lowest in the two opposite."""
        turned = (sector + (7 - FIRST)) % 6
        return tl.where(turned < 2, value, tl.where((turned == 2) | (turned == 5), mixed, low))

    @triton.jit
    def _turn(r, g, b, shift):
        """Colours whose hue is shifted by so many turns, by way of HSV."""
        r, g, b = tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)
        most = tl.maximum(tl.maximum(r, g), b)
        spread = most - tl.minimum(tl.minimum(r, g), b)
        grey = spread == 0.0
        saturation = tl.div_rn(spread, tl.where(grey, 1.0, most))
        spread = tl.where(grey, 1.0, spread)
        red, green = most == r, most == g
        # In sixths of a turn from the highest colour, of red, green and blue in this order where several are.
        start = tl.where(red, 0.0, tl.where(green, 2.0, 4.0))
        ahead = most - tl.where(red, b, tl.where(green, r, g))
        behind = most - tl.where(red, g, tl.where(green, b, r))
        sixths = start + tl.div_rn(ahead, spread) - tl.div_rn(behind, spread)
        hue = tl.div_rn(sixths, 6.0) + 1.0
        hue = hue - tl.floor(hue) + shift
        hue = (hue - tl.floor(hue)) * 6.0
        sector = tl.floor(hue)
        part = hue - sector
        sector = sector.to(tl.int32)  # 6 where a hue just below 0 was rounded to a whole turn
        low = most * (1.0 - saturation)
        mixed = most * (1.0 - saturation * tl.where(sector % 2 == 1, part, 1.0 - part))
        r = tl.floor(_sector(most, mixed, low, sector, 0) * 255.999)
        g = tl.floor(_sector(most, mixed, low, sector, 2) * 255.999)
        b = tl.floor(_sector(most, mixed, low, sector, 4) * 255.999)
        return r, g, b

    @triton.jit
    def _adjust(step, r, g, b, factors, mean):
        """Whole numbers 0..255 after one step: 0 brightness, 1 contrast, 2 saturation, 3 hue."""
        factor = tl.load(factors + step)
        if step == 3:
            r, g, b = _turn(r, g, b, factor)
        else:
            other = tl.where(step == 0, 0.0, tl.where(step == 1, mean, _grey(r, g, b)))
            r, g, b = _blend(r, other, factor), _blend(g, other, factor), _blend(b, other, factor)
        return r, g, b

    @triton.jit
    def _read(at, inside):
        r = tl.load(at, mask=inside, other=0).to(tl.float32)
        g = tl.load(at + 1, mask=inside, other=0).to(tl.float32)
        b = tl.load(at + 2, mask=inside, other=0).to(tl.float32)
        return r, g, b

    @triton.jit
    def _greys_before_contrast(pixels, factors, order, sums, points, BLOCK: tl.constexpr):
        """The sum of a block's grey levels after the steps before contrast."""
        image = tl.program_id(0).to(tl.int64)
        point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = point < points
        r, g, b = _read(pixels + (image * points + point) * 3, inside)
        order += image * 4
        place = 0
        step = tl.load(order)
        while step != 1:
            r, g, b = _adjust(step, r, g, b, factors + image * 4, 0.0)
            place += 1
            step = tl.load(order + place)
        grey = tl.where(inside, _grey(r, g, b), 0.0).to(tl.int32)
        tl.store(sums + image * tl.num_programs(1) + tl.program_id(1), tl.sum(grey, 0))

    @triton.jit
    def _jitter(pixels, factors, order, means, out, points, BLOCK: tl.constexpr):
        image = tl.program_id(0).to(tl.int64)
        point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = point < points
        at = (image * points + point) * 3
        r, g, b = _read(pixels + at, inside)
        mean = tl.load(means + image)
        for place in range(4):
            r, g, b = _adjust(tl.load(order + image * 4 + place), r, g, b, factors + image * 4, mean)
        tl.store(out + at, r.to(tl.uint8), mask=inside)
        tl.store(out + at + 1, g.to(tl.uint8), mask=inside)
        tl.store(out + at + 2, b.to(tl.uint8), mask=inside)


def jitter(pixels: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] of pixels uint8 [N, H, W, 3], colours changed as each image's factors and order say.

    factors float32 [N, 4]: brightness, contrast and saturation, 1 for no change, and the hue's shift in turns; order
    int [N, 4]: the numbers 0..3 of these in the order of their use. All three on the card. The reference is
    `colours.jitter_one`, torchvision's functions on uint8 tensors, to the last grey level: each step is rounded as
    theirs. The mean for contrast is the exact sum's; PyTorch's on the CPU is off by parts in 10**7 on large images.
    """
    pixels, factors, order = pixels.contiguous(), factors.contiguous(), order.contiguous()
    points = pixels.shape[1] * pixels.shape[2]
    grid = (len(pixels), triton.cdiv(points, _PIXELS))
    sums = torch.empty(grid, dtype=torch.int32, device=pixels.device)
    out = torch.empty_like(pixels)
    # Fused, a product and a sum are rounded once, and a grey pixel may become a level darker than torchvision's.
    _greys_before_contrast[grid](pixels, factors, order, sums, points, _PIXELS, enable_fp_fusion=False)
    means = (sums.sum(1, dtype=torch.float64) / points).float()
    _jitter[grid](pixels, factors, order, means, out, points, _PIXELS, enable_fp_fusion=False)
    return out
