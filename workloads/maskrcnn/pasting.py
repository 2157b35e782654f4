"""Paste predicted masks into whole images for COCO evaluation.

Shapes: D detections, S pixels along the side of a predicted mask.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..common.detection.coco_evaluation import Rle, import_pycocotools
from ..common.nn.triton_support import tl, triton

_HALF = np.float32(0.5)
_PADDING = 1  # pixels of zeros around a predicted mask, so that it can end inside its box
_BLOCK = 1024  # pixels that a program pastes at a time
_CHANGES_PER_MASK = 4096  # on average: a smooth mask has two for each column of its box

# In COCO's RLE, runs are numbers of six bits of text, the sixth of which says whether another follows.
_BITS, _CONTINUED, _FIRST_CHARACTER = 5, 1 << 5, 48
_MAX_CHARACTERS = 7  # of a 32-bit run


class PastedMasks(NamedTuple):
    """Masks in whole images as the pixels at which they change, in COCO's order: down the columns, from the left.

    `changes` int32 [capacity] are those of all masks one after the other, of mask d up to `ends[d]` (int64 [D]).
    `probabilities` and `boxes` are those that were pasted.
    """

    changes: Tensor
    ends: Tensor
    probabilities: Tensor
    boxes: Tensor

    def rles(self, rows: NDArray[np.int64], image_sizes: NDArray[np.int64]) -> list[Rle]:
        """Return the RLE masks of `rows` [R], in images of `image_sizes` [R, 2]; the tensors must be on the CPU."""
        boxes, ends = self.boxes.numpy()[rows], self.ends.numpy()
        _check_boxes(boxes)
        starts, ends = np.concatenate([ends[:1] * 0, ends[:-1]])[rows], ends[rows]
        stored = ends <= len(self.changes)
        rles = _encode(self.changes.numpy(), starts[stored], ends[stored], image_sizes[stored])
        if not stored.all():  # there was no room for noise, as from a model that was not trained
            rest = ~stored
            pasted = paste_masks(self.probabilities.numpy()[rows[rest]], boxes[rest], image_sizes[rest])
            of_kernel, of_cpu = iter(rles), iter(pasted)
            rles = [next(of_kernel if is_stored else of_cpu) for is_stored in stored.tolist()]
        return rles


def paste_masks(probabilities: ArrayLike, boxes: ArrayLike, image_sizes: ArrayLike) -> list[Rle]:
    """Return the RLE masks of D detections in whole images, as Mask R-CNN's reference pastes them.

    `probabilities` [D, S, S] are resized to `boxes` [D, 4] (left, top, right, bottom in pixels, inclusive) of images of
    `image_sizes` [D, 2] or [2] (height, width); a pixel is set where its probability exceeds 0.5. Arguments are arrays
    or tensors on the CPU. Raises `ValueError` for boxes that are not finite or of another number,
    `ConfigurationError` without pycocotools.
    """
    import_pycocotools()
    masks, corners = np.asarray(probabilities, np.float32), np.asarray(boxes, np.float32)
    if len(masks) != len(corners):
        raise ValueError("Each mask needs a box.")
    _check_boxes(corners)
    sizes = np.broadcast_to(np.asarray(image_sizes, np.int64), (len(corners), 2))
    padded = np.pad(masks, ((0, 0), *[(_PADDING, _PADDING)] * 2))
    grown = _grown(torch.from_numpy(corners), masks.shape[-1]).tolist()
    return [_paste_one(mask, corner, size) for mask, corner, size in zip(padded, grown, sizes.tolist(), strict=True)]


def paste_by_kernel(probabilities: Tensor, boxes: Tensor, image_sizes: Tensor, valid: Tensor) -> PastedMasks:
    """Paste those of D detections that exist according to `valid` bool [D]; does not wait for the device.

    The other arguments are those of `paste_masks`, with `image_sizes` int64 [D, 2].
    """
    count, side = len(probabilities), probabilities.shape[-1]
    corners = torch.where(valid[:, None], _grown(boxes.float(), side), -2)  # a box outside of the image
    changes = torch.empty(count * _CHANGES_PER_MASK, dtype=torch.int32, device=boxes.device)
    counts = torch.empty(count, dtype=torch.int64, device=boxes.device)
    arguments = {
        "probabilities_ptr": probabilities.contiguous(), "corners_ptr": corners,
        "image_sizes_ptr": image_sizes.contiguous(), "counts_ptr": counts, "changes_ptr": changes,
        "capacity": len(changes), "SIDE": side, "BLOCK": _BLOCK,
        "enable_fp_fusion": False,  # pixels on the threshold are those of `paste_masks`
    }  # fmt: skip
    _paste[(count,)](ends_ptr=counts, WRITE=False, **arguments)
    ends = counts.cumsum(0)
    _paste[(count,)](ends_ptr=ends, WRITE=True, **arguments)
    return PastedMasks(changes, ends, probabilities, boxes)


def _check_boxes(boxes: NDArray[np.float32]) -> None:
    if not np.isfinite(boxes).all():
        raise ValueError("Each mask needs a box of finite numbers.")


def _grown(boxes: Tensor, side: int) -> Tensor:
    """Return the corners int32 [D, 4] of the boxes of masks with their padding."""
    growth = float(np.float32((side + 2 * _PADDING) / side))
    center, half_size = (boxes[:, :2] + boxes[:, 2:]) * 0.5, (boxes[:, 2:] - boxes[:, :2]) * 0.5 * growth
    return torch.cat([center - half_size, center + half_size], 1).int()  # the reference rounds towards 0


def _paste_one(mask: NDArray[np.float32], corners: list[int], image_size: list[int]) -> Rle:
    """Resize a mask to the box between `corners`, both inclusive, and return its part inside the image."""
    height, width = image_size
    left, top, right, bottom = corners
    lower, upper, weight = _interpolation(mask.shape[1], left, right, width)
    resized_columns = mask[:, lower] * (1 - weight) + mask[:, upper] * weight
    lower, upper, weight = _interpolation(mask.shape[0], top, bottom, height)
    weight = weight[:, None]
    inside = resized_columns[lower] * (1 - weight) + resized_columns[upper] * weight > _HALF
    x, y = max(left, 0), max(top, 0)
    columns = np.zeros((inside.shape[1], height), bool)
    columns[:, y : y + len(inside)] = inside.T
    flat = np.concatenate([[False], columns.ravel(), [False]])
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + x * height
    counts = np.diff(changes[changes < height * width], prepend=0, append=height * width).tolist()
    return import_pycocotools().mask.frPyObjects({"size": image_size, "counts": counts}, height, width)


def _interpolation(
    cells: int, first: int, last: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return lower cell, upper cell and the upper one's weight of each pixel when `cells` are resized along one axis.

    The cells are resized to the pixels `first` to `last`, of which those in 0 to `limit` - 1 are returned. The
    interpolation is bilinear between cell centers, in float32 like the reference's.
    """
    step = np.float32(cells) / np.float32(max(last - first + 1, 1))
    pixels = np.arange(max(first, 0), min(last + 1, limit)) - first
    position = np.maximum(step * (pixels.astype(np.float32) + _HALF) - _HALF, 0)
    lower = position.astype(np.int64)
    return lower, np.minimum(lower + 1, cells - 1), position - lower.astype(np.float32)


def _encode(
    changes: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64], image_sizes: NDArray[np.int64]
) -> list[Rle]:
    """Return the RLE masks [R] whose changes are changes[starts[r]:ends[r]]: `frPyObjects` of all of them at once.

    A run is stored as its difference to the run before the last one, from the fourth run on.
    """
    run_counts = ends - starts + 1  # the last one ends with the image
    last = run_counts.cumsum() - 1
    first = last - run_counts + 1
    # The changes of a mask lie before its last run: so each moves by the masks' distance.
    source = np.arange(last[-1] + 1 if len(last) else 0) + np.repeat(starts - first, run_counts)
    source[last] = 0
    stops = changes[source] if len(changes) else np.zeros(len(source), np.int32)
    stops[last] = image_sizes.prod(1)
    runs = np.diff(stops, prepend=0)
    runs[first] = stops[first]
    values = runs.copy()
    values[3:] -= runs[1:-2]
    for number in range(3):
        start = (first + number)[run_counts > number]
        values[start] = runs[start]
    magnitude = np.where(values < 0, ~values, values)
    lengths = np.ones(len(values), np.int32)
    for place in range(1, _MAX_CHARACTERS):
        longer = magnitude >> _BITS * place - 1 > 0
        if not longer.any():
            break
        lengths += longer
    text_stops = lengths.cumsum()
    text = np.empty(int(text_stops[-1]) if len(text_stops) else 0, np.uint8)
    position = text_stops - lengths
    for place in range(int(lengths.max(initial=0))):
        continued = lengths > place + 1
        text[position] = (values >> _BITS * place & _CONTINUED - 1) + _CONTINUED * continued + _FIRST_CHARACTER
        values, lengths, position = values[continued], lengths[continued], position[continued] + 1
    text_ends, string = text_stops[last].tolist(), text.tobytes()
    return [
        {"size": size, "counts": string[start:end]}
        for size, start, end in zip(image_sizes.tolist(), [0, *text_ends], text_ends, strict=False)
    ]


@triton.jit
def _paste(
    probabilities_ptr, corners_ptr, image_sizes_ptr, counts_ptr, ends_ptr, changes_ptr, capacity,
    SIDE: tl.constexpr, BLOCK: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    """Count the changes of one mask or, with WRITE, store them before its end.

    Pixels of an image are counted in 32 bits: Pillow refuses images above 2^28.
    """
    detection = tl.program_id(0).to(tl.int64)
    mask_ptr = probabilities_ptr + detection * SIDE * SIDE
    left, top = tl.load(corners_ptr + detection * 4), tl.load(corners_ptr + detection * 4 + 1)
    right, bottom = tl.load(corners_ptr + detection * 4 + 2), tl.load(corners_ptr + detection * 4 + 3)
    height = tl.load(image_sizes_ptr + detection * 2).to(tl.int32)
    width = tl.load(image_sizes_ptr + detection * 2 + 1).to(tl.int32)
    # A mask changes as far as the pixel after its box. After the last row that is the first of the next column.
    first_row = tl.where(bottom >= height - 1, 0, tl.maximum(top, 0))
    rows = tl.maximum(tl.minimum(bottom + 2, height) - first_row, 0)
    first_column = tl.maximum(left, 0)
    pixels = rows * tl.maximum(tl.minimum(right + 2, width) - first_column, 0)
    position = tl.zeros((), tl.int64)
    if WRITE:
        position = tl.load(ends_ptr + detection) - tl.load(counts_ptr + detection)
    for start in range(0, pixels, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        x, y = first_column + pixel // rows, first_row + pixel % rows
        before_x, before_y = tl.where(y > 0, x, x - 1), tl.where(y > 0, y, height) - 1
        here = _is_set(mask_ptr, x, y, left, top, right, bottom, SIDE)
        before = (before_x >= 0) & _is_set(mask_ptr, before_x, before_y, left, top, right, bottom, SIDE)
        changed = ((here != before) & (pixel < pixels)).to(tl.int32)
        if WRITE:
            place = position + tl.cumsum(changed, 0) - 1
            tl.store(changes_ptr + place, x * height + y, mask=(changed != 0) & (place < capacity))
        position += tl.sum(changed, 0)
    if not WRITE:
        tl.store(counts_ptr + detection, position)


@triton.jit
def _cells(pixel, first, last, SIDE: tl.constexpr):
    """Return lower cell, upper cell and the upper one's weight, as `_interpolation` does."""
    step = tl.div_rn((SIDE + 2) * 1.0, tl.maximum(last - first + 1, 1).to(tl.float32))
    position = tl.maximum(step * ((pixel - first).to(tl.float32) + 0.5) - 0.5, 0.0)
    lower = position.to(tl.int32)
    return lower, tl.minimum(lower + 1, SIDE + 1), position - lower.to(tl.float32)


@triton.jit
def _cell(mask_ptr, row, column, SIDE: tl.constexpr):
    inside = (row >= 1) & (row <= SIDE) & (column >= 1) & (column <= SIDE)
    return tl.load(mask_ptr + (row - 1) * SIDE + column - 1, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _is_set(mask_ptr, x, y, left, top, right, bottom, SIDE: tl.constexpr):
    x0, x1, dx = _cells(x, left, right, SIDE)
    y0, y1, dy = _cells(y, top, bottom, SIDE)
    upper = _cell(mask_ptr, y0, x0, SIDE) * (1 - dx) + _cell(mask_ptr, y0, x1, SIDE) * dx
    lower = _cell(mask_ptr, y1, x0, SIDE) * (1 - dx) + _cell(mask_ptr, y1, x1, SIDE) * dx
    in_box = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    return in_box & (upper * (1 - dy) + lower * dy > 0.5)
