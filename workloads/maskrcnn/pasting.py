"""Predicted masks pasted into their images, as COCO's scores take them.

They are pasted in shares, in the processes of a pool if there is one.
"""

from concurrent.futures import Executor
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.detection.coco_evaluation import PackedMask, each, pycocotools_loaded

_PASTED_AT_ONCE = 512
_HALF = np.float32(0.5)
_BORDER = 1  # pixels of nothing around a predicted mask, so that it can end inside its box


def paste_masks(
    probabilities: ArrayLike, boxes: ArrayLike, sizes: ArrayLike, pool: Executor | None = None
) -> list[PackedMask]:
    """The packed masks in whole images of D detections, arrays or tensors on the CPU, as Mask R-CNN's reference has it.

    `probabilities` [D, S, S] are stretched over `boxes` [D, 4], left, top, right, bottom in pixels of images of `sizes`
    [D, 2] or [2], (height, width); widths are inclusive. A pixel is the object's where its probability is above a half.
    Raises `ValueError` for boxes that are not finite or not as many, `ConfigurationError` without pycocotools.
    """
    pycocotools_loaded()
    grids, corners = np.asarray(probabilities), np.asarray(boxes, np.float32)
    if len(grids) != len(corners) or not np.isfinite(corners).all():
        raise ValueError("Every mask needs a box of finite numbers to be pasted into.")
    shapes = np.broadcast_to(np.asarray(sizes, np.int64), (len(corners), 2))
    parts = [slice(start, start + _PASTED_AT_ONCE) for start in range(0, len(corners), _PASTED_AT_ONCE)]
    jobs = [(grids[part], corners[part], shapes[part]) for part in parts]
    return list(chain.from_iterable(each(_paste, jobs, pool)))


def _paste(job: tuple[NDArray[Any], NDArray[np.float32], NDArray[np.int64]]) -> list[PackedMask]:
    grids, boxes, sizes = job
    padded = np.pad(grids.astype(np.float32), ((0, 0), *[(_BORDER, _BORDER)] * 2))
    grown = np.float32(padded.shape[-1] / grids.shape[-1])
    centre, half = ((boxes[:, :2] + boxes[:, 2:]) * _HALF, (boxes[:, 2:] - boxes[:, :2]) * _HALF * grown)
    corners = np.concatenate([centre - half, centre + half], 1).astype(np.int32)  # towards 0, as the reference rounds
    rows = zip(padded, corners.tolist(), sizes.tolist(), strict=True)
    return [_paste_one(grid, corner, size) for grid, corner, size in rows]


def _paste_one(grid: NDArray[np.float32], corners: list[int], size: list[int]) -> PackedMask:
    """The mask of a grid that is stretched from corner to corner, both included, in an image of that size."""
    height, width = size
    left, top, right, bottom = corners
    near, far, share = _stretch(grid.shape[1], left, right, width)
    wide = grid[:, near] * (1 - share) + grid[:, far] * share
    near, far, share = _stretch(grid.shape[0], top, bottom, height)
    share = share[:, None]
    inside = wide[near] * (1 - share) + wide[far] * share > _HALF
    x, y = max(left, 0), max(top, 0)
    columns = np.zeros((inside.shape[1], height), bool)
    columns[:, y : y + len(inside)] = inside.T
    flat = np.concatenate([[False], columns.ravel(), [False]])
    bounds = np.flatnonzero(flat[1:] != flat[:-1]) + x * height
    counts = np.diff(bounds[bounds < height * width], prepend=0, append=height * width).tolist()
    return pycocotools_loaded().mask.frPyObjects({"size": size, "counts": counts}, height, width)


def _stretch(
    cells: int, first: int, last: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """`cells` over the pixels `first` to `last`: for each pixel from 0 to `limit` the two cells it lies between.

    Gives the nearer to the start, the other and its share, float32 as the reference has it: bilinear between middles.
    """
    step = np.float32(cells) / np.float32(max(last - first + 1, 1))
    pixels = np.arange(max(first, 0), min(last + 1, limit)) - first
    place = np.maximum(step * (pixels.astype(np.float32) + _HALF) - _HALF, 0)
    near = place.astype(np.int64)
    return near, np.minimum(near + 1, cells - 1), place - near.astype(np.float32)
