"""Crop and resize a batch of images on the GPU, with antialiasing, each to its own size.

Shapes: N images on a canvas of H by W pixels. The result is deterministic.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..nn.packing import copy_to_device
from ..nn.triton_support import tl, triton

_BLOCK_ROWS, _BLOCK_COLUMNS = 8, 64  # of the canvas, per program


def crop_and_resize(
    addresses: Tensor,
    sizes: Tensor,
    boxes: Tensor,
    flipped: Tensor,
    resized: Tensor,
    canvas: tuple[int, int],
    fill: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Return uint8 [N, *canvas, 3] from images whose planes [3, height, width] start at `addresses` int64 [N].

    The planes are on the GPU; the arguments are on the CPU: `sizes` int32 [N, 2], `boxes` int32 [N, 4] (top, left,
    height, width), `flipped` bool [N] and `resized` int [N, 2], the height and width that a crop is resized to. A crop
    is placed at the top left of its canvas (height, width); the rest has the RGB color `fill`.

    The reference is Pillow's `resize(BILINEAR)` of the crop, which is PyTorch's `interpolate(antialias=True)`: a
    triangle filter that is two output pixels and at least two input pixels wide and reads nothing outside of the crop.
    Pillow also rounds between its two passes, so results differ by up to one level. The planes may be freed on the
    current stream as soon as this function returns.
    """
    planes = torch.stack([sizes[:, 0] * sizes[:, 1], sizes[:, 1]], 1)
    crops = torch.cat([planes, boxes, flipped[:, None].int(), resized.int()], 1)
    out = torch.empty(len(addresses), *canvas, 3, dtype=torch.uint8, device=device)
    grid = (len(addresses), triton.cdiv(canvas[0], _BLOCK_ROWS), triton.cdiv(canvas[1], _BLOCK_COLUMNS))
    addresses, crops = (copy_to_device(tensor.numpy(), device) for tensor in (addresses, crops))
    red, green, blue = (float(level) for level in fill)
    _crop_and_resize[grid](
        addresses_ptr=addresses, crops_ptr=crops, out_ptr=out, canvas_height=canvas[0], canvas_width=canvas[1],
        red_fill=red, green_fill=green, blue_fill=blue, BLOCK_ROWS=_BLOCK_ROWS, BLOCK_COLUMNS=_BLOCK_COLUMNS,
    )  # fmt: skip
    return out


@triton.jit
def _filter(position, in_size, out_size):
    """Return, along one axis, an output pixel's first input pixel, and center and slope of its triangle filter."""
    scale = in_size.to(tl.float32) / out_size
    support = tl.maximum(scale, 1.0)
    center = (position + 0.5) * scale
    return tl.floor(center - support + 0.5).to(tl.int32), center, 1.0 / support


@triton.jit
def _tap(position, center, slope, in_size):
    """Return an input pixel's weight, 0 outside of the crop, and its position clamped to the crop."""
    weight = tl.maximum(1.0 - tl.abs(position + 0.5 - center) * slope, 0.0)
    weight = tl.where((position >= 0) & (position < in_size), weight, 0.0)
    return weight, tl.minimum(tl.maximum(position, 0), in_size - 1)


@triton.jit
def _crop_and_resize(
    addresses_ptr, crops_ptr, out_ptr, canvas_height, canvas_width, red_fill, green_fill, blue_fill,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a tile of a canvas. Offsets in a source fit in 32 bits: Pillow refuses images above 2^28 pixels."""
    image = tl.program_id(0).to(tl.int64)
    crop_ptr = crops_ptr + image * 9
    plane_size, row_stride = tl.load(crop_ptr), tl.load(crop_ptr + 1)
    top, left = tl.load(crop_ptr + 2), tl.load(crop_ptr + 3)
    crop_height, crop_width, flipped = tl.load(crop_ptr + 4), tl.load(crop_ptr + 5), tl.load(crop_ptr + 6)
    out_height, out_width = tl.load(crop_ptr + 7), tl.load(crop_ptr + 8)
    red_ptr = tl.load(addresses_ptr + image).to(tl.pointer_type(tl.uint8))
    green_ptr, blue_ptr = red_ptr + plane_size, red_ptr + 2 * plane_size
    first_row, first_column = tl.program_id(1) * BLOCK_ROWS, tl.program_id(2) * BLOCK_COLUMNS
    row = first_row + tl.arange(0, BLOCK_ROWS)[:, None]
    column = first_column + tl.arange(0, BLOCK_COLUMNS)[None]
    source_column = tl.where(flipped != 0, out_width - 1 - column, column)
    first_y, center_y, slope_y = _filter(row, crop_height, out_height)
    first_x, center_x, slope_x = _filter(source_column, crop_width, out_width)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    red, green, blue = total, total, total
    taps_y = tl.cdiv(2 * tl.maximum(crop_height, out_height), out_height)
    taps_x = tl.cdiv(2 * tl.maximum(crop_width, out_width), out_width)
    taps_y = tl.where((first_row < out_height) & (first_column < out_width), taps_y, 0)  # none beside the image
    for tap_y in range(0, taps_y):
        weight_y, y = _tap(first_y + tap_y, center_y, slope_y, crop_height)
        line = (top + y) * row_stride + left
        for tap_x in range(0, taps_x):
            weight, x = _tap(first_x + tap_x, center_x, slope_x, crop_width)
            weight, offset = weight_y * weight, line + x
            red += weight * tl.load(red_ptr + offset).to(tl.float32)
            green += weight * tl.load(green_ptr + offset).to(tl.float32)
            blue += weight * tl.load(blue_ptr + offset).to(tl.float32)
            total += weight
    in_image = (row < out_height) & (column < out_width)
    norm = 1.0 / tl.where(in_image, total, 1.0)
    in_canvas = (row < canvas_height) & (column < canvas_width)
    target_ptr = out_ptr + (image * canvas_height + row) * canvas_width * 3 + column * 3
    tl.store(target_ptr, tl.where(in_image, red * norm + 0.5, red_fill).to(tl.uint8), mask=in_canvas)
    tl.store(target_ptr + 1, tl.where(in_image, green * norm + 0.5, green_fill).to(tl.uint8), mask=in_canvas)
    tl.store(target_ptr + 2, tl.where(in_image, blue * norm + 0.5, blue_fill).to(tl.uint8), mask=in_canvas)
