"""Paste predicted masks into whole images for COCO evaluation, optionally in a process pool."""

from concurrent.futures import Executor
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.detection.coco_evaluation import Rle, import_pycocotools
from ..common.detection.process_pool import pool_map

_MASKS_PER_JOB = 512
_HALF = np.float32(0.5)
_PADDING = 1  # pixels of zeros around a predicted mask, so that it can end inside its box


def paste_masks(
    probabilities: ArrayLike, boxes: ArrayLike, image_sizes: ArrayLike, pool: Executor | None = None
) -> list[Rle]:
    """Return the RLE masks of D detections in whole images, as Mask R-CNN's reference pastes them.

    `probabilities` [D, S, S] are resized to `boxes` [D, 4] (left, top, right, bottom in pixels, inclusive) of images of
    `image_sizes` [D, 2] or [2] (height, width); a pixel is set where its probability exceeds 0.5. Arguments are arrays
    or tensors on the CPU. Raises `ValueError` for boxes that are not finite or of another number,
    `ConfigurationError` without pycocotools.
    """
    import_pycocotools()
    masks, corners = np.asarray(probabilities), np.asarray(boxes, np.float32)
    if len(masks) != len(corners) or not np.isfinite(corners).all():
        raise ValueError("Each mask needs a box of finite numbers.")
    sizes = np.broadcast_to(np.asarray(image_sizes, np.int64), (len(corners), 2))
    parts = [slice(start, start + _MASKS_PER_JOB) for start in range(0, len(corners), _MASKS_PER_JOB)]
    jobs = [(masks[part], corners[part], sizes[part]) for part in parts]
    return list(chain.from_iterable(pool_map(_paste, jobs, pool)))


def _paste(job: tuple[NDArray[Any], NDArray[np.float32], NDArray[np.int64]]) -> list[Rle]:
    masks, boxes, image_sizes = job
    padded = np.pad(masks.astype(np.float32), ((0, 0), *[(_PADDING, _PADDING)] * 2))
    growth = np.float32(padded.shape[-1] / masks.shape[-1])
    center, half_size = ((boxes[:, :2] + boxes[:, 2:]) * _HALF, (boxes[:, 2:] - boxes[:, :2]) * _HALF * growth)
    # The reference rounds towards 0.
    corners = np.concatenate([center - half_size, center + half_size], 1).astype(np.int32)
    rows = zip(padded, corners.tolist(), image_sizes.tolist(), strict=True)
    return [_paste_one(mask, corner, size) for mask, corner, size in rows]


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
