"""Color jitter of SSD's training images on the GPU, a batch at a time.

Shapes: N images of H by W pixels. The results are deterministic: no sum depends on the order of programs.
"""

import torch
from torch import Tensor

from ..common.nn.triton_support import tl, triton

_BLOCK = 512  # pixels of a program


def jitter(pixels: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Return pixels uint8 [N, H, W, 3] with brightness, contrast, saturation and hue changed.

    `factors` float32 [N, 4] are brightness, contrast and saturation, 1 for no change, and the hue's shift in turns.
    `order` int [N, 4] holds the indices 0..3 of these in their order of application. All three are on the GPU.

    The reference is `color_jitter.jitter_image`, torchvision's functions on uint8 tensors; the results are equal,
    because each step is rounded alike. The mean for contrast is exact; PyTorch's on the CPU is off by parts in 10**7
    on large images.
    """
    pixels, factors, order = pixels.contiguous(), factors.contiguous(), order.contiguous()
    pixels_per_image = pixels.shape[1] * pixels.shape[2]
    grid = (len(pixels), triton.cdiv(pixels_per_image, _BLOCK))
    sums = torch.empty(grid, dtype=torch.int32, device=pixels.device)
    out = torch.empty_like(pixels)
    # A fused multiply-add rounds once, and a gray pixel may become a level darker than torchvision's.
    _sum_gray_before_contrast[grid](
        pixels_ptr=pixels, factors_ptr=factors, order_ptr=order, sums_ptr=sums, pixels_per_image=pixels_per_image,
        BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    means = (sums.sum(1, dtype=torch.float64) / pixels_per_image).float()
    _jitter[grid](
        pixels_ptr=pixels, factors_ptr=factors, order_ptr=order, means_ptr=means, out_ptr=out,
        pixels_per_image=pixels_per_image, BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit
def _sum_gray_before_contrast(pixels_ptr, factors_ptr, order_ptr, sums_ptr, pixels_per_image, BLOCK: tl.constexpr):
    """Store the sum of a block's gray levels after the steps that precede contrast."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < pixels_per_image
    r, g, b = _load_rgb(pixels_ptr + (image * pixels_per_image + pixel) * 3, mask)
    order_ptr += image * 4
    position = 0
    step = tl.load(order_ptr)
    while step != 1:
        r, g, b = _adjust(step, r, g, b, factors_ptr + image * 4, 0.0)
        position += 1
        step = tl.load(order_ptr + position)
    gray = tl.where(mask, _gray(r, g, b), 0.0).to(tl.int32)
    tl.store(sums_ptr + image * tl.num_programs(1) + tl.program_id(1), tl.sum(gray, 0))


@triton.jit
def _jitter(pixels_ptr, factors_ptr, order_ptr, means_ptr, out_ptr, pixels_per_image, BLOCK: tl.constexpr):
    """Store BLOCK pixels after all four steps."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < pixels_per_image
    offset = (image * pixels_per_image + pixel) * 3
    r, g, b = _load_rgb(pixels_ptr + offset, mask)
    mean = tl.load(means_ptr + image)
    for position in range(0, 4):
        r, g, b = _adjust(tl.load(order_ptr + image * 4 + position), r, g, b, factors_ptr + image * 4, mean)
    tl.store(out_ptr + offset, r.to(tl.uint8), mask=mask)
    tl.store(out_ptr + offset + 1, g.to(tl.uint8), mask=mask)
    tl.store(out_ptr + offset + 2, b.to(tl.uint8), mask=mask)


@triton.jit
def _gray(r, g, b):
    return tl.floor(0.2989 * r + 0.587 * g + 0.114 * b)


@triton.jit
def _blend(value, other, factor):
    return tl.floor(tl.minimum(tl.maximum(factor * value + (1.0 - factor) * other, 0.0), 255.0))


@triton.jit
def _hsv_channel(value, intermediate, low, sector, FIRST: tl.constexpr):
    """Return a channel of HSV to RGB: highest in sector FIRST and the one before, lowest in the two opposite ones."""
    shifted = (sector + (7 - FIRST)) % 6
    return tl.where(shifted < 2, value, tl.where((shifted == 2) | (shifted == 5), intermediate, low))


@triton.jit
def _shift_hue(r, g, b, shift):
    """Shift the hue by `shift` turns, through HSV."""
    r, g, b = tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)
    value = tl.maximum(tl.maximum(r, g), b)
    chroma = value - tl.minimum(tl.minimum(r, g), b)
    is_gray = chroma == 0.0
    saturation = tl.div_rn(chroma, tl.where(is_gray, 1.0, value))
    chroma = tl.where(is_gray, 1.0, chroma)
    red_is_max, green_is_max = value == r, value == g
    # The hue in sixths of a turn, relative to the highest channel; of equal ones red, then green, then blue.
    start = tl.where(red_is_max, 0.0, tl.where(green_is_max, 2.0, 4.0))
    ahead = value - tl.where(red_is_max, b, tl.where(green_is_max, r, g))
    behind = value - tl.where(red_is_max, g, tl.where(green_is_max, b, r))
    sixths = start + tl.div_rn(ahead, chroma) - tl.div_rn(behind, chroma)
    hue = tl.div_rn(sixths, 6.0) + 1.0
    hue = hue - tl.floor(hue) + shift
    hue = (hue - tl.floor(hue)) * 6.0
    sector = tl.floor(hue)
    fraction = hue - sector
    sector = sector.to(tl.int32)  # 6 if a hue just below 0 was rounded up to a whole turn
    low = value * (1.0 - saturation)
    intermediate = value * (1.0 - saturation * tl.where(sector % 2 == 1, fraction, 1.0 - fraction))
    r = tl.floor(_hsv_channel(value, intermediate, low, sector, 0) * 255.999)
    g = tl.floor(_hsv_channel(value, intermediate, low, sector, 2) * 255.999)
    b = tl.floor(_hsv_channel(value, intermediate, low, sector, 4) * 255.999)
    return r, g, b


@triton.jit
def _adjust(step, r, g, b, factors_ptr, mean):
    """Apply one step to integers 0..255: 0 brightness, 1 contrast, 2 saturation, 3 hue."""
    factor = tl.load(factors_ptr + step)
    if step == 3:
        r, g, b = _shift_hue(r, g, b, factor)
    else:
        other = tl.where(step == 0, 0.0, tl.where(step == 1, mean, _gray(r, g, b)))
        r, g, b = _blend(r, other, factor), _blend(g, other, factor), _blend(b, other, factor)
    return r, g, b


@triton.jit
def _load_rgb(ptr, mask):
    r = tl.load(ptr, mask=mask, other=0).to(tl.float32)
    g = tl.load(ptr + 1, mask=mask, other=0).to(tl.float32)
    b = tl.load(ptr + 2, mask=mask, other=0).to(tl.float32)
    return r, g, b
