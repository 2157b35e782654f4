"""A Triton kernel that crops, resizes and flips a batch of decoded images of any sizes."""

import torch
from torch import Tensor

from ..nn.packing import copy_to_device
from ..nn.triton_support import tl, triton
from ..vision.gpu_decode import GpuImages

_BLOCK = 512  # pixels of a program


def crop_and_resize(images: GpuImages, boxes: Tensor, flipped: Tensor, size: int) -> Tensor:
    """Crop, resize and flip N images on their GPU; return uint8 [N, size, size, 3].

    boxes int32 [N, 4] (top, left, height, width) and flipped bool [N] lie on the CPU. Resizes as `transforms.resize`
    does. The images may be freed on the current stream as soon as this returns.
    """
    device, sizes = images.device, images.sizes
    planes = torch.stack([sizes[:, 0] * sizes[:, 1], sizes[:, 1]], 1)  # pixels of a plane, and of a row
    frames = torch.cat([planes, boxes, flipped[:, None].int()], 1)
    out = torch.empty(len(boxes), size, size, 3, dtype=torch.uint8, device=device)
    addresses, frames = (copy_to_device(tensor.numpy(), device) for tensor in (images.addresses, frames))
    _crop_and_resize[(len(boxes), triton.cdiv(size * size, _BLOCK))](
        addresses_ptr=addresses, frames_ptr=frames, out_ptr=out, SIZE=size, BLOCK=_BLOCK
    )
    return out


@triton.jit
def _crop_and_resize(addresses_ptr, frames_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write BLOCK pixels of an image. Offsets in a source fit in 32 bits: Pillow refuses images above 2^28 pixels."""
    image = tl.program_id(0)
    source_ptr = tl.load(addresses_ptr + image).to(tl.pointer_type(tl.uint8))
    frame_ptr = frames_ptr + image * 7
    plane, row_stride = tl.load(frame_ptr), tl.load(frame_ptr + 1)
    top, left = tl.load(frame_ptr + 2), tl.load(frame_ptr + 3)
    crop_height, crop_width, flipped = tl.load(frame_ptr + 4), tl.load(frame_ptr + 5), tl.load(frame_ptr + 6)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < SIZE * SIZE
    row, column = pixel // SIZE, pixel % SIZE
    column = tl.where(flipped != 0, SIZE - 1 - column, column)
    y = tl.maximum((row + 0.5) * (crop_height.to(tl.float32) / SIZE) - 0.5, 0.0)
    x = tl.maximum((column + 0.5) * (crop_width.to(tl.float32) / SIZE) - 0.5, 0.0)
    y0, x0 = tl.minimum(y.to(tl.int32), crop_height - 1), tl.minimum(x.to(tl.int32), crop_width - 1)
    y1, x1 = tl.minimum(y0 + 1, crop_height - 1), tl.minimum(x0 + 1, crop_width - 1)
    y_weight, x_weight = y - y0, x - x0
    upper_row, lower_row = (top + y0) * row_stride + left, (top + y1) * row_stride + left
    for channel in tl.static_range(3):
        plane_ptr = source_ptr + channel * plane
        top_left = tl.load(plane_ptr + upper_row + x0, mask=valid, other=0).to(tl.float32)
        top_right = tl.load(plane_ptr + upper_row + x1, mask=valid, other=0).to(tl.float32)
        bottom_left = tl.load(plane_ptr + lower_row + x0, mask=valid, other=0).to(tl.float32)
        bottom_right = tl.load(plane_ptr + lower_row + x1, mask=valid, other=0).to(tl.float32)
        upper = top_left + (top_right - top_left) * x_weight
        lower = bottom_left + (bottom_right - bottom_left) * x_weight
        value = upper + (lower - upper) * y_weight + 0.5
        offset = image.to(tl.int64) * (SIZE * SIZE * 3) + pixel.to(tl.int64) * 3 + channel
        tl.store(out_ptr + offset, value.to(tl.uint8), mask=valid)
