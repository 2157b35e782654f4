"""COCO's segmentations, polygons and RLE masks, in a few flat arrays: checked, and rasterized one at a time."""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import ConfigurationError

MAX_OUTSIDE = 1.0  # pixels by which a box or polygon may leave its image: tools differ in where a pixel ends
_DECIMALS = 2  # of COCO's coordinates
# Compressed run lengths: up to five characters that announce another, and one that does not: 30 bits are more than any
# image has pixels.
_COMPRESSED = re.compile("(?:[P-o]{0,5}[0-O])+")
_RLE_AT_ONCE = 1000  # masks that are read together: some 10 MB

Report = Callable[[NDArray[Any], Callable[[int], str]], None]
"""Takes the indices of invalid annotations, and a function that tells what an invalid annotation has."""
Edges = tuple[NDArray[np.float32], NDArray[np.bool_]]
"""A mask's outline: edges, float32 [E, 4] (x, y to x, y in pixels), and which end a polygon, bool [E].

A point is inside a polygon if an odd number of its edges lie above the point, and in the mask if inside any polygon.
"""


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
    known = [index for index in rle_indices if size[index, 0] >= 0]
    for start in range(0, len(known), _RLE_AT_ONCE):
        indices = known[start : start + _RLE_AT_ONCE]
        counts = _parse_counts([segmentations[index].get("counts") for index in indices])
        for index, runs in zip(indices, counts, strict=True):
            if fault := _fault_of_rle(segmentations[index].get("size"), runs, *size[index].tolist()):
                faults[index] = fault
            elif runs is not None:
                parts.append(runs.astype(np.uint32))
                length[index] = len(runs)
    report(np.array(list(faults), np.int64), lambda index: faults[index])
    stop = np.cumsum(length)
    return np.stack([stop - length, stop], 1), np.concatenate(parts) if parts else np.empty(0, np.uint32)


def _fault_of_rle(shape: Any, runs: NDArray[Any] | None, height: int, width: int) -> str | None:
    """Return why an RLE mask does not fill an image of this size, or None."""
    if shape != [height, width]:
        return f"RLE of the size {shape!r}, not its image's [{height}, {width}]: encode it again"
    if runs is None:
        return "RLE that is neither a list of counts nor COCO's compressed text: encode it again"
    total = sum(runs.tolist())  # Python's sum: counts can be up to 2**64
    if total != height * width:
        return f"RLE of {total} pixels, not its image's {height * width}: encode it again"
    return None


def _parse_counts(counts: Sequence[Any]) -> list[NDArray[Any] | None]:
    """Return the run lengths of RLE masks, as lists or as compressed text; None for what is neither."""
    texts = _decompress_counts([text if isinstance(text, str) else "" for text in counts])
    return [runs if isinstance(text, str) else _parse_list(text) for text, runs in zip(counts, texts, strict=True)]


def _parse_list(counts: Any) -> NDArray[Any] | None:
    try:
        runs = np.array(counts)
    except ValueError:  # lists of several lengths
        return None
    valid = runs.ndim == 1 and runs.dtype.kind in "iu" and runs.size > 0 and bool((runs >= 0).all())
    return runs if valid else None


def _decompress_counts(texts: Sequence[str]) -> list[NDArray[np.int64] | None]:
    """Return the counts in COCO's compressed RLE texts (the format of pycocotools' `rleToString`); None if malformed.

    A character is 48 plus 6 bits: 5 bits of a number in two's complement, lowest first, and whether more follow. From
    the fourth on, a number is the difference from the count two before. All texts are read at once.
    """
    found: list[NDArray[np.int64] | None] = [None] * len(texts)
    valid = [place for place, text in enumerate(texts) if _COMPRESSED.fullmatch(text)]
    if not valid:
        return found
    code = np.frombuffer("".join(texts[place] for place in valid).encode("ascii"), np.uint8).astype(np.int64) - 48
    last = np.flatnonzero(code & 32 == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    position = np.arange(code.size) - np.repeat(first, last - first + 1)
    numbers = np.add.reduceat((code & 31) << 5 * position, first)
    numbers -= np.where(code[last] & 16, 1 << 5 * (last - first + 1), 0)
    stops = np.searchsorted(last, np.cumsum([len(texts[place]) for place in valid]))
    for place, start, stop in zip(valid, [0, *stops[:-1].tolist()], stops.tolist(), strict=True):
        counts = numbers[start:stop]
        for parity in (counts[1::2], counts[2::2]):
            np.cumsum(parity, out=parity)
        found[place] = counts if (counts >= 0).all() else None
    return found


def polygon_edges(polygons: Sequence[NDArray[np.float32]]) -> Edges:
    """Return the edges of a mask's polygons."""
    edges = np.concatenate([np.concatenate([points, np.roll(points, -1, 0)], 1) for points in polygons])
    last = np.zeros(len(edges), bool)
    last[np.cumsum([len(points) for points in polygons]) - 1] = True
    return edges, last


def rle_edges(runs: NDArray[np.uint32], run: NDArray[np.int64], height: NDArray[np.int64]) -> Iterator[Edges]:
    """Yield the edges of RLE masks of `height` pixels, int64 [M]: mask m is `runs[run[m, 0] : run[m, 1]]`.

    A mask becomes one polygon whatever its parts and holes, without vertical edges, which lie above no point.
    """
    for start in range(0, len(run), _RLE_AT_ONCE):
        part = slice(start, start + _RLE_AT_ONCE)
        length = run[part, 1] - run[part, 0]
        places = np.arange(length.sum()) + np.repeat(run[part, 0] - (np.cumsum(length) - length), length)
        edges, counts = _horizontal_edges(runs[places], length, height[part])
        for own in np.split(edges, np.cumsum(counts)[:-1]):
            yield own, np.arange(1, len(own) + 1) == len(own)


def _horizontal_edges(
    runs: NDArray[np.uint32], length: NDArray[np.int64], height: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the borders between vertical neighbors inside and outside of M masks, merged, and the number of each mask.

    The masks, `height` pixels high, int64 [M], have `length` runs each, one after the other in `runs`. The borders are
    float32 [E, 4], the numbers int64 [M].
    """
    first = np.cumsum(length) - length
    mask = np.repeat(np.arange(len(length)), length)
    inside = (np.arange(len(runs)) - first[mask]) % 2 == 1
    ends = np.cumsum(runs, dtype=np.int64)
    pixels = np.diff(ends[first + length - 1], prepend=0)
    start, stop = ((side - (np.cumsum(pixels) - pixels)[mask])[inside] for side in (ends - runs, ends))
    mask = mask[inside]
    rows = height[mask]
    columns = (stop - 1) // rows - start // rows + 1
    run = np.repeat(np.arange(len(start)), columns)
    mask, start, stop, rows = mask[run], start[run], stop[run], rows[run]
    x = np.arange(len(run)) - np.repeat(np.cumsum(columns) - columns, columns) + start // rows
    y = np.concatenate([np.maximum(start - x * rows, 0), np.minimum(stop - x * rows, rows)])
    stride = pixels // height + 1  # one more than the width, so that borders of two rows are not merged
    size = (height + 1) * stride
    offset = np.cumsum(size) - size  # so that all masks are merged at once
    both = np.tile(mask, 2)
    position, count = np.unique(offset[both] + y * stride[both] + np.tile(x, 2), return_counts=True)
    position = position[count % 2 == 1]  # two runs meet where a border is there twice
    is_first = np.diff(position, prepend=-2) != 1
    mask = np.searchsorted(offset, position[is_first], side="right") - 1
    y, left = np.divmod(position[is_first] - offset[mask], stride[mask])
    right = (position[np.roll(is_first, -1)] - offset[mask]) % stride[mask] + 1
    return np.stack([left, y, right, y], 1).astype(np.float32), np.bincount(mask, minlength=len(length))


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
    (counts,) = _decompress_counts([rle["counts"].decode()])
    assert counts is not None
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def restore_decimals(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return coordinates as they are in the JSON file if they have up to two decimals there, as COCO's have.

    The rasterizer rounds to fifths of a pixel, where 0.7 as float32 lies on the other side of a boundary.
    """
    exact = points.astype(np.float64)
    rounded = np.round(exact, _DECIMALS)
    return np.where(rounded.astype(np.float32) == points, rounded, exact)
