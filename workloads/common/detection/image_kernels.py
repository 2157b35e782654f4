"""Images on the card: crops scaled without aliasing, a batch at a time, each to its own size.

Shapes: N images on a canvas of H by W pixels. What leaves the kernel is the same every time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..nn.packing import uploaded

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of PyTorch for the CPU and for macOS have none
    triton = None

_ROWS, _COLUMNS = 8, 64  # of the canvas that a program makes

if triton is not None:

    @triton.jit
    def _filters(place, length, size):
        """Along one axis: the first pixel that an output pixel's filter meets, the filter's middle and its slope."""
        step = length.to(tl.float32) / size
        reach = tl.maximum(step, 1.0)
        middle = (place + 0.5) * step
        return tl.floor(middle - reach + 0.5).to(tl.int32), middle, 1.0 / reach

    @triton.jit
    def _tap(at, middle, slope, length):
        """A pixel's weight, 0 outside of the crop, and where to read it: always inside."""
        weight = tl.maximum(1.0 - tl.abs(at + 0.5 - middle) * slope, 0.0)
        weight = tl.where((at >= 0) & (at < length), weight, 0.0)
        return weight, tl.minimum(tl.maximum(at, 0), length - 1)

    @triton.jit
    def _crop_and_scale(
        places, frames, out, rows, columns, RED, GREEN, BLUE, ROWS: tl.constexpr, COLUMNS: tl.constexpr
    ):
        image = tl.program_id(0).to(tl.int64)
        frame = frames + image * 9
        plane, pitch = tl.load(frame), tl.load(frame + 1)
        top, left = tl.load(frame + 2), tl.load(frame + 3)
        tall, wide, mirrored = tl.load(frame + 4), tl.load(frame + 5), tl.load(frame + 6)
        high, broad = tl.load(frame + 7), tl.load(frame + 8)
        reds = tl.load(places + image).to(tl.pointer_type(tl.uint8))
        greens, blues = reds + plane, reds + 2 * plane
        first_row, first_column = tl.program_id(1) * ROWS, tl.program_id(2) * COLUMNS
        row = first_row + tl.arange(0, ROWS)[:, None]
        column = first_column + tl.arange(0, COLUMNS)[None]
        seen = tl.where(mirrored != 0, broad - 1 - column, column)
        first_y, middle_y, slope_y = _filters(row, tall, high)
        first_x, middle_x, slope_x = _filters(seen, wide, broad)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        red, green, blue = total, total, total
        taps_y = tl.cdiv(2 * tl.maximum(tall, high), high)
        taps_x = tl.cdiv(2 * tl.maximum(wide, broad), broad)
        taps_y = tl.where((first_row < high) & (first_column < broad), taps_y, 0)  # beside the image there are none
        for down in range(0, taps_y):
            share, y = _tap(first_y + down, middle_y, slope_y, tall)
            line = (top + y) * pitch + left
            for across in range(0, taps_x):
                weight, x = _tap(first_x + across, middle_x, slope_x, wide)
                weight, at = share * weight, line + x
                red += weight * tl.load(reds + at).to(tl.float32)
                green += weight * tl.load(greens + at).to(tl.float32)
                blue += weight * tl.load(blues + at).to(tl.float32)
                total += weight
        shown = (row < high) & (column < broad)
        share = 1.0 / tl.where(shown, total, 1.0)
        inside = (row < rows) & (column < columns)
        at = out + (image * rows + row) * columns * 3 + column * 3
        tl.store(at, tl.where(shown, red * share + 0.5, RED).to(tl.uint8), mask=inside)
        tl.store(at + 1, tl.where(shown, green * share + 0.5, GREEN).to(tl.uint8), mask=inside)
        tl.store(at + 2, tl.where(shown, blue * share + 0.5, BLUE).to(tl.uint8), mask=inside)


def crop_and_scale(
    addresses: Tensor,
    sizes: Tensor,
    boxes: Tensor,
    mirrored: Tensor,
    scaled: Tensor,
    canvas: tuple[int, int],
    colour: Sequence[int],
    device: torch.device,
) -> Tensor:
    """uint8 [N, *canvas, 3] from images whose planes [3, height, width] begin at `addresses` int64 [N] on the card.

    sizes int32 [N, 2], boxes int32 [N, 4] (top, left, height, width) and mirrored bool [N] are on the CPU, as the
    addresses are, and as `scaled` int [N, 2], the height and width that a crop gets; it lies at the top left of a
    canvas (height, width) that is elsewhere of one RGB colour. The reference is Pillow's `resize(BILINEAR)` of the
    crop, in PyTorch `interpolate(antialias=True)`: a triangle as wide as two output pixels, at least two input pixels,
    that knows nothing beyond the crop. Pillow also rounds between its two passes, so the two differ by up to one grey
    level. The images may be freed on the current stream as soon as this returns.
    """
    planes = torch.stack([sizes[:, 0] * sizes[:, 1], sizes[:, 1]], 1)
    frames = torch.cat([planes, boxes, mirrored[:, None].int(), scaled.int()], 1)
    out = torch.empty(len(addresses), *canvas, 3, dtype=torch.uint8, device=device)
    grid = (len(addresses), triton.cdiv(canvas[0], _ROWS), triton.cdiv(canvas[1], _COLUMNS))
    places, frames = (uploaded(tensor.numpy(), device) for tensor in (addresses, frames))
    _crop_and_scale[grid](places, frames, out, *canvas, *(float(level) for level in colour), _ROWS, _COLUMNS)
    return out
