"""COCO's segmentations, polygons and RLE masks, in a few flat arrays: checked, and rasterized one at a time."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import ConfigurationError

MAX_OUTSIDE = 1.0  # pixels by which a box or polygon may leave its image: tools differ in where a pixel ends
_DECIMALS = 2  # of COCO's coordinates
_MAX_COUNT_CHARACTERS = 6  # of a run length in compressed RLE: 30 bits, more than any image has pixels

Report = Callable[[NDArray[Any], Callable[[int], str]], None]
"""Takes the indices of invalid annotations, and a function that tells what an invalid annotation has."""


@dataclass(frozen=True)
class Segments:
    """Polygons and RLE masks of A annotations; an annotation has one of them or none.

    Annotation a has the polygons `outline[a, 0]` to `outline[a, 1]`; polygon p has the points `corner[p]` to
    `corner[p + 1]` of `corners`, float32 [points, 2], x and y in pixels. Its run lengths are `run[a, 0]` to `run[a, 1]`
    of `runs`, uint32: pixels outside, inside, outside, ... down the columns, from the left.
    """

    outline: NDArray[np.int64]
    corner: NDArray[np.int64]
    corners: NDArray[np.float32]
    run: NDArray[np.int64]
    runs: NDArray[np.uint32]


def compact_polygons(record: dict[str, Any]) -> dict[str, Any]:
    """Pack the polygons of a JSON object while it is parsed; lists of floats would take 2 GB for train2017."""
    polygons = record.get("segmentation")
    if type(polygons) is list:
        try:
            record["segmentation"] = [array("f", polygon) for polygon in polygons]
        except (TypeError, OverflowError):
            record["segmentation"] = False  # reported by `flatten_segmentations`
    return record


def drop_segmentation(record: dict[str, Any]) -> dict[str, Any]:
    """Remove the segmentation of a JSON object while it is parsed."""
    record.pop("segmentation", None)
    return record


def flatten_segmentations(
    segmentations: Sequence[Any], size: NDArray[np.int64], report: Report, *, required: bool
) -> Segments:
    """Return the segmentations, one of `compact_polygons` per annotation, in flat arrays; problems go to `report`.

    `size` is the (height, width) of each annotation's image, int64 [A, 2], and -1 where it is unknown. A missing
    segmentation is a problem only if it is `required`.
    """
    polygons: list[array[float]] = []
    num_polygons = np.zeros(len(segmentations), np.int64)
    rle_indices, invalid, missing = [], [], []
    for index, segmentation in enumerate(segmentations):
        if segmentation is None or segmentation == []:
            missing.append(index)
        elif type(segmentation) is list:
            polygons += segmentation
            num_polygons[index] = len(segmentation)
        elif type(segmentation) is dict:
            rle_indices.append(index)
        else:
            invalid.append(index)
    report(
        np.array(invalid, np.int64), lambda _: "a segmentation that is neither a list of polygons nor RLE: correct it"
    )
    if required:
        report(np.array(missing, np.int64), lambda _: "no segmentation, which training masks requires: add one")
    outline, corner, corners = _flatten_polygons(polygons, num_polygons, size, report)
    run, runs = _flatten_rle(segmentations, rle_indices, size, report)
    return Segments(outline, corner, corners, run, runs)


def _flatten_polygons(
    polygons: list["array[float]"], num_polygons: NDArray[np.int64], size: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return `outline`, `corner` and `corners` of `Segments`; invalid polygons are reported and left out."""
    length = np.fromiter(map(len, polygons), np.int64, len(polygons))
    owner = np.repeat(np.arange(len(num_polygons)), num_polygons)
    valid = (length >= 6) & (length % 2 == 0)
    if not valid.all():
        wrong = dict(zip(owner[~valid].tolist(), length[~valid].tolist(), strict=True))
        report(
            np.array(list(wrong)),
            lambda index: f"a polygon of {wrong[index]} numbers, not an even count of 6 or more: correct or remove it",
        )
        polygons = [polygon for polygon, is_valid in zip(polygons, valid, strict=True) if is_valid]
        length, owner = length[valid], owner[valid]
    corner = np.concatenate([[0], np.cumsum(length // 2)])
    corners = np.frombuffer(bytearray().join(polygons), np.float32).reshape(-1, 2)
    if len(polygons):
        low, high = (extreme.reduceat(corners, corner[:-1]) for extreme in (np.minimum, np.maximum))
        outside = np.maximum(-low, high - size[owner, ::-1]).max(1)
        too_far = ~(outside <= MAX_OUTSIDE) & (size[owner, 0] >= 0)  # also for NaN
        distance = dict(zip(owner[too_far].tolist(), outside[too_far].tolist(), strict=True))
        report(
            np.array(list(distance), np.int64),
            lambda index: f"a polygon that leaves its image by {distance[index]:.1f} pixels: correct or remove it",
        )
    count = np.bincount(owner, minlength=len(num_polygons))
    stop = np.cumsum(count)
    return np.stack([stop - count, stop], 1), corner, corners


def _flatten_rle(
    segmentations: Sequence[Any], rle_indices: list[int], size: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return `run` and `runs` of `Segments`; RLE that does not fill its image is reported and left out."""
    faults: dict[int, str] = {}
    parts: list[NDArray[np.uint32]] = []
    length = np.zeros(len(segmentations), np.int64)
    for index in rle_indices:
        height, width = size[index].tolist()
        if height < 0:
            continue
        try:
            parts.append(_parse_rle(segmentations[index], height, width))
            length[index] = len(parts[-1])
        except ValueError as error:
            faults[index] = str(error)
    report(np.array(list(faults), np.int64), lambda index: faults[index])
    stop = np.cumsum(length)
    return np.stack([stop - length, stop], 1), np.concatenate(parts) if parts else np.empty(0, np.uint32)


def _parse_rle(segmentation: dict[str, Any], height: int, width: int) -> NDArray[np.uint32]:
    """Return the run lengths of an RLE mask; raises `ValueError` if they do not fill an image of this size."""
    shape, counts = segmentation.get("size"), segmentation.get("counts")
    if shape != [height, width]:
        raise ValueError(f"RLE of the size {shape!r}, not its image's [{height}, {width}]: encode it again")
    try:
        runs = _decompress_counts(counts) if isinstance(counts, str) else np.array(counts)
        valid = runs.ndim == 1 and runs.dtype.kind in "iu" and runs.size > 0 and bool((runs >= 0).all())
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("RLE that is neither a list of counts nor COCO's compressed text: encode it again")
    total = sum(runs.tolist())  # Python's sum: counts can be up to 2**64
    if total != height * width:
        raise ValueError(f"RLE of {total} pixels, not its image's {height * width}: encode it again")
    return runs.astype(np.uint32)


def _decompress_counts(text: str) -> NDArray[np.int64]:
    """Return the counts in COCO's compressed RLE text (the format of pycocotools' `rleToString`).

    A character is 48 plus 6 bits: 5 bits of a number in two's complement, lowest first, and whether more follow. From
    the fourth on, a number is the difference from the count two before.
    """
    code = np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64) - 48
    if not code.size or (code < 0).any() or (code > 63).any() or code[-1] & 32:
        raise ValueError
    last = np.flatnonzero(code & 32 == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    length = last - first + 1
    if length.max() > _MAX_COUNT_CHARACTERS:
        raise ValueError
    position = np.arange(code.size) - np.repeat(first, length)
    counts = np.add.reduceat((code & 31) << 5 * position, first)
    counts -= np.where(code[last] & 16, 1 << 5 * length, 0)
    for parity in (counts[1::2], counts[2::2]):
        np.cumsum(parity, out=parity)
    return counts


def edges(
    polygons: Sequence[NDArray[np.float32]], runs: NDArray[np.uint32], height: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return a mask's outline as edges, float32 [E, 4] (x, y to x, y in pixels), and which end a polygon, bool [E].

    A point is inside a polygon if an odd number of its edges lie above the point, and inside the mask if it is inside
    any polygon. RLE of an image `height` pixels high becomes one polygon whatever its parts and holes, without vertical
    edges, which lie above no point.
    """
    if len(runs):
        result = _horizontal_edges(runs, height)
        last = np.arange(1, len(result) + 1) == len(result)
    else:
        result = np.concatenate([np.concatenate([points, np.roll(points, -1, 0)], 1) for points in polygons])
        last = np.zeros(len(result), bool)
        last[np.cumsum([len(points) for points in polygons]) - 1] = True
    return result, last


def _horizontal_edges(runs: NDArray[np.uint32], height: int) -> NDArray[np.float32]:
    """Return the borders between vertical neighbors inside and outside a mask, merged, float32 [E, 4]."""
    start, stop = np.cumsum(runs, dtype=np.int64)[: len(runs) // 2 * 2].reshape(-1, 2).T  # of the runs inside
    columns = (stop - 1) // height - start // height + 1
    run = np.repeat(np.arange(len(start)), columns)
    x = np.arange(len(run)) - np.repeat(np.cumsum(columns) - columns, columns) + start[run] // height
    y = np.concatenate([np.maximum(start[run] - x * height, 0), np.minimum(stop[run] - x * height, height)])
    stride = int(runs.sum()) // height + 1  # one more than the width, so that borders of two rows are not merged
    position, count = np.unique(y * stride + np.tile(x, 2), return_counts=True)
    position = position[count % 2 == 1]  # two runs meet where a border is there twice
    is_first = np.diff(position, prepend=-2) != 1
    y, left = np.divmod(position[is_first], stride)
    right = position[np.roll(is_first, -1)] % stride + 1
    return np.stack([left, y, right, y], 1).astype(np.float32)


def encode_rle(
    polygons: Sequence[NDArray[np.float32]], runs: NDArray[np.uint32], height: int, width: int
) -> dict[str, Any]:
    """Return polygons or run lengths as pycocotools' RLE, {"size": [height, width], "counts": bytes}."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ConfigurationError("COCO masks need pycocotools: pip install pycocotools.") from error
    if len(runs):
        return mask.frPyObjects({"size": [height, width], "counts": runs.tolist()}, height, width)
    points = [restore_decimals(polygon).ravel().tolist() for polygon in polygons]
    return mask.merge(mask.frPyObjects(points, height, width))


def decode_rle(rle: dict[str, Any]) -> NDArray[np.bool_]:
    """Return the mask of pycocotools' RLE, bool [height, width]; pycocotools' own decoder warns with NumPy 2."""
    height, width = rle["size"]
    counts = _decompress_counts(rle["counts"].decode())
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def restore_decimals(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return coordinates as they are in the JSON file if they have up to two decimals there, as COCO's have.

    The rasterizer rounds to fifths of a pixel, where 0.7 as float32 lies on the other side of a boundary.
    """
    exact = points.astype(np.float64)
    rounded = np.round(exact, _DECIMALS)
    return np.where(rounded.astype(np.float32) == points, rounded, exact)
