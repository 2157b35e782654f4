"""A Triton kernel that crops, resizes and flips a batch of decoded images of any sizes."""

import torch
from torch import Tensor

from ..vision.gpu_decode import GpuImages

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for the CPU and for macOS comes without Triton
    triton = None

_BLOCK = 512

if triton is not None:

    @triton.jit
    def _crop_and_resize(addresses, frames, out, size: tl.constexpr, BLOCK: tl.constexpr):
        image = tl.program_id(0)
        source = tl.load(addresses + image).to(tl.pointer_type(tl.uint8))
        frame = frames + image * 7
        plane, pitch = tl.load(frame), tl.load(frame + 1)
        top, left = tl.load(frame + 2), tl.load(frame + 3)
        crop_height, crop_width, flipped = tl.load(frame + 4), tl.load(frame + 5), tl.load(frame + 6)
        pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        valid = pixel < size * size
        row, column = pixel // size, pixel % size
        column = tl.where(flipped != 0, size - 1 - column, column)
        y = tl.maximum((row + 0.5) * (crop_height.to(tl.float32) / size) - 0.5, 0.0)
        x = tl.maximum((column + 0.5) * (crop_width.to(tl.float32) / size) - 0.5, 0.0)
        y0, x0 = tl.minimum(y.to(tl.int32), crop_height - 1), tl.minimum(x.to(tl.int32), crop_width - 1)
        y1, x1 = tl.minimum(y0 + 1, crop_height - 1), tl.minimum(x0 + 1, crop_width - 1)
        y_weight, x_weight = y - y0, x - x0
        upper_row, lower_row = (top + y0) * pitch + left, (top + y1) * pitch + left
        for channel in tl.static_range(3):
            base = source + channel * plane
            a = tl.load(base + upper_row + x0, mask=valid, other=0).to(tl.float32)
            b = tl.load(base + upper_row + x1, mask=valid, other=0).to(tl.float32)
            c = tl.load(base + lower_row + x0, mask=valid, other=0).to(tl.float32)
            d = tl.load(base + lower_row + x1, mask=valid, other=0).to(tl.float32)
            upper, lower = a + (b - a) * x_weight, c + (d - c) * x_weight
            value = upper + (lower - upper) * y_weight + 0.5
            offset = image.to(tl.int64) * (size * size * 3) + pixel * 3 + channel
            tl.store(out + offset, value.to(tl.uint8), mask=valid)


def crop_and_resize(images: GpuImages, boxes: Tensor, flipped: Tensor, size: int) -> Tensor:
    """Crop, resize and flip N images on their GPU; return uint8 [N, size, size, 3].

    boxes int32 [N, 4] (top, left, height, width) and flipped bool [N] lie on the CPU. Resizes as `transforms.resize`
    does. The images may be freed on the current stream as soon as this returns.
    """
    device, sizes = images.device, images.sizes
    planes = torch.stack([sizes[:, 0] * sizes[:, 1], sizes[:, 1]], 1)  # pixels of a plane, and of a row
    frames = torch.cat([planes, boxes, flipped[:, None].int()], 1).pin_memory()
    out = torch.empty(len(boxes), size, size, 3, dtype=torch.uint8, device=device)
    grid = (len(boxes), triton.cdiv(size * size, _BLOCK))
    addresses = images.addresses.pin_memory().to(device, non_blocking=True)
    _crop_and_resize[grid](addresses, frames.to(device, non_blocking=True), out, size, _BLOCK)
    return out
