"""Cropping, resizing and flipping a batch of decoded images of any sizes in one kernel."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of PyTorch for the CPU and for macOS have none, and no NVIDIA card either
    triton = None

_BLOCK = 512

if triton is not None:

    @triton.jit
    def _crop_and_resize(places, frames, out, size: tl.constexpr, BLOCK: tl.constexpr):
        image = tl.program_id(0)
        source = tl.load(places + image).to(tl.pointer_type(tl.uint8))
        frame = frames + image * 7
        plane, pitch = tl.load(frame), tl.load(frame + 1)
        top, left = tl.load(frame + 2), tl.load(frame + 3)
        tall, wide, flipped = tl.load(frame + 4), tl.load(frame + 5), tl.load(frame + 6)
        point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = point < size * size
        row, column = point // size, point % size
        seen = tl.where(flipped != 0, size - 1 - column, column)
        y = tl.maximum((row + 0.5) * (tall.to(tl.float32) / size) - 0.5, 0.0)
        x = tl.maximum((seen + 0.5) * (wide.to(tl.float32) / size) - 0.5, 0.0)
        y0, x0 = tl.minimum(y.to(tl.int32), tall - 1), tl.minimum(x.to(tl.int32), wide - 1)
        y1, x1 = tl.minimum(y0 + 1, tall - 1), tl.minimum(x0 + 1, wide - 1)
        down, across = y - y0, x - x0
        above, below = (top + y0) * pitch + left, (top + y1) * pitch + left
        for colour in tl.static_range(3):
            base = source + colour * plane
            a = tl.load(base + above + x0, mask=inside, other=0).to(tl.float32)
            b = tl.load(base + above + x1, mask=inside, other=0).to(tl.float32)
            c = tl.load(base + below + x0, mask=inside, other=0).to(tl.float32)
            d = tl.load(base + below + x1, mask=inside, other=0).to(tl.float32)
            upper, lower = a + (b - a) * across, c + (d - c) * across
            value = upper + (lower - upper) * down + 0.5
            place = image.to(tl.int64) * (size * size * 3) + point * 3 + colour
            tl.store(out + place, value.to(tl.uint8), mask=inside)


def crop_and_resize(
    addresses: Tensor, sizes: Tensor, boxes: Tensor, flipped: Tensor, size: int, device: torch.device
) -> Tensor:
    """uint8 [N, size, size, 3] from images whose planes [3, height, width] begin at `addresses` int64 [N] on the card.

    sizes int32 [N, 2], boxes int32 [N, 4] (top, left, height, width) and flipped bool [N] are on the CPU, as the
    addresses are. Bilinear between pixel centres, no antialiasing, as `data.resize`. The images may be freed on the
    current stream as soon as this returns.
    """
    planes = torch.stack([sizes[:, 0] * sizes[:, 1], sizes[:, 1]], 1)
    frames = torch.cat([planes, boxes, flipped[:, None].int()], 1).pin_memory()
    out = torch.empty(len(addresses), size, size, 3, dtype=torch.uint8, device=device)
    grid = (len(addresses), triton.cdiv(size * size, _BLOCK))
    places = addresses.pin_memory().to(device, non_blocking=True)
    _crop_and_resize[grid](places, frames.to(device, non_blocking=True), out, size, _BLOCK)
    return out
