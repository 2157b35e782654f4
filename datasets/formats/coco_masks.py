"""COCO's segmentations: polygons and runs in a few flat arrays, checked, and rasterised one annotation at a time."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import ConfigurationError

OUTSIDE = 1.0  # pixels by which a box or polygon may leave its image: tools differ in where a pixel ends
_DECIMALS = 2  # of COCO's coordinates
_LONGEST = 6  # characters of a packed run: 30 bits, more than any image has pixels


Report = Callable[[NDArray[Any], Callable[[int], str]], None]  # takes the annotations that are wrong, and what each has


@dataclass(frozen=True)
class Segments:
    """Polygons and runs of A annotations; an annotation has either, or neither.

    Annotation a has the polygons `outline[a, 0]` to `outline[a, 1]`; polygon p has the points `corner[p]` to
    `corner[p + 1]` of `corners`, float32 [points, 2], x and y in pixels. Its runs are `run[a, 0]` to `run[a, 1]` of
    `runs`, uint32: pixels outside, inside, outside, ... down the columns, from the left.
    """

    outline: NDArray[np.int64]
    corner: NDArray[np.int64]
    corners: NDArray[np.float32]
    run: NDArray[np.int64]
    runs: NDArray[np.uint32]


def compact(thing: dict[str, Any]) -> dict[str, Any]:
    """Packs the polygons of a JSON object while it is parsed: as lists of floats train2017's would take 2 GB."""
    polygons = thing.get("segmentation")
    if type(polygons) is list:
        try:
            thing["segmentation"] = [array("f", polygon) for polygon in polygons]
        except (TypeError, OverflowError):
            thing["segmentation"] = False  # which `flatten` names
    return thing


def leave_out(thing: dict[str, Any]) -> dict[str, Any]:
    """Forgets the segmentation of a JSON object while it is parsed."""
    thing.pop("segmentation", None)
    return thing


def flatten(found: Sequence[Any], size: NDArray[np.int64], report: Report, *, demanded: bool) -> Segments:
    """The segmentations `found` (of `compact`, one an annotation) in flat arrays; what is wrong goes to `report`.

    `size` is the (height, width) of each annotation's image, int64 [A, 2], and -1 where that is unknown. An annotation
    without any segmentation is wrong only if it is `demanded`.
    """
    polygons: list[array[float]] = []
    parts = np.zeros(len(found), np.int64)
    packed, strange, missing = [], [], []
    for index, thing in enumerate(found):
        if thing is None or thing == []:
            missing.append(index)
        elif type(thing) is list:
            polygons += thing
            parts[index] = len(thing)
        elif type(thing) is dict:
            packed.append(index)
        else:
            strange.append(index)
    report(np.array(strange, np.int64), lambda _: "a segmentation that is neither a list of polygons nor runs: mend it")
    if demanded:
        report(np.array(missing, np.int64), lambda _: "no segmentation, and masks cannot be learnt without: add one")
    outline, corner, corners = _polygons(polygons, parts, size, report)
    run, runs = _runs(found, packed, size, report)
    return Segments(outline, corner, corners, run, runs)


def _polygons(
    polygons: list["array[float]"], parts: NDArray[np.int64], size: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """`outline`, `corner` and `corners` of `Segments`; polygons that are none are reported and left out."""
    length = np.fromiter(map(len, polygons), np.int64, len(polygons))
    owner = np.repeat(np.arange(len(parts)), parts)
    sound = (length >= 6) & (length % 2 == 0)
    if not sound.all():
        wrong = dict(zip(owner[~sound].tolist(), length[~sound].tolist(), strict=True))
        report(
            np.array(list(wrong)),
            lambda index: f"a polygon of {wrong[index]} numbers, not an even count of 6 or more: mend or remove it",
        )
        polygons = [polygon for polygon, good in zip(polygons, sound, strict=True) if good]
        length, owner = length[sound], owner[sound]
    corner = np.concatenate([[0], np.cumsum(length // 2)])
    corners = np.frombuffer(bytearray().join(polygons), np.float32).reshape(-1, 2)
    if len(polygons):
        least, most = (extreme.reduceat(corners, corner[:-1]) for extreme in (np.minimum, np.maximum))
        beyond = np.maximum(-least, most - size[owner, ::-1]).max(1)
        far = ~(beyond <= OUTSIDE) & (size[owner, 0] >= 0)  # also where a coordinate is no number
        by = dict(zip(owner[far].tolist(), beyond[far].tolist(), strict=True))
        report(
            np.array(list(by), np.int64),
            lambda index: f"a polygon that leaves its image by {by[index]:.1f} pixels: mend or remove it",
        )
    count = np.bincount(owner, minlength=len(parts))
    stop = np.cumsum(count)
    return np.stack([stop - count, stop], 1), corner, corners


def _runs(
    found: Sequence[Any], packed: list[int], size: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """`run` and `runs` of `Segments`; runs that do not fill their image are reported and left out."""
    faults: dict[int, str] = {}
    pieces: list[NDArray[np.uint32]] = []
    length = np.zeros(len(found), np.int64)
    for index in packed:
        height, width = size[index].tolist()
        if height < 0:
            continue
        try:
            pieces.append(_filling(found[index], height, width))
            length[index] = len(pieces[-1])
        except ValueError as error:
            faults[index] = str(error)
    report(np.array(list(faults), np.int64), lambda index: faults[index])
    stop = np.cumsum(length)
    return np.stack([stop - length, stop], 1), np.concatenate(pieces) if pieces else np.empty(0, np.uint32)


def _filling(segmentation: dict[str, Any], height: int, width: int) -> NDArray[np.uint32]:
    """The runs of a segmentation, which must fill an image of that size; `ValueError` says what it has instead."""
    shape, counts = segmentation.get("size"), segmentation.get("counts")
    if shape != [height, width]:
        raise ValueError(f"runs of the size {shape!r}, not its image's [{height}, {width}]: make them anew")
    try:
        runs = _unpack(counts) if isinstance(counts, str) else np.array(counts)
        sound = runs.ndim == 1 and runs.dtype.kind in "iu" and runs.size > 0 and bool((runs >= 0).all())
    except ValueError:
        sound = False
    if not sound:
        raise ValueError("runs that are neither a list of counts nor COCO's packed text: make them anew")
    total = sum(runs.tolist())  # Python's sum: a count may be anything up to 2**64
    if total != height * width:
        raise ValueError(f"runs of {total} pixels, not its image's {height * width}: make them anew")
    return runs.astype(np.uint32)


def _unpack(text: str) -> NDArray[np.int64]:
    """The counts in COCO's packed text (the format of pycocotools' `rleToString`).

    A character is 48 plus 6 bits: 5 of a number in two's complement, lowest first, and whether more follow. From the
    fourth on, a number is the difference from the count two before.
    """
    code = np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64) - 48
    if not code.size or (code < 0).any() or (code > 63).any() or code[-1] & 32:
        raise ValueError
    last = np.flatnonzero(code & 32 == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    length = last - first + 1
    if length.max() > _LONGEST:
        raise ValueError
    place = np.arange(code.size) - np.repeat(first, length)
    counts = np.add.reduceat((code & 31) << 5 * place, first)
    counts -= np.where(code[last] & 16, 1 << 5 * length, 0)
    for parity in (counts[1::2], counts[2::2]):
        np.cumsum(parity, out=parity)
    return counts


def edges(
    polygons: Sequence[NDArray[np.float32]], runs: NDArray[np.uint32], height: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A mask's outline as edges, float32 [E, 4] from x, y to x, y in pixels, and which end a polygon, bool [E].

    Inside of a polygon is what an odd number of its edges lie left of; the mask is all that any polygon covers. Runs,
    of an image `height` pixels high, become one polygon however many parts and holes they have, without the edges that
    lie level: nothing lies left of those.
    """
    if len(runs):
        found = _upright(runs, height)
        last = np.arange(1, len(found) + 1) == len(found)
    else:
        found = np.concatenate([np.concatenate([points, np.roll(points, -1, 0)], 1) for points in polygons])
        last = np.zeros(len(found), bool)
        last[np.cumsum([len(points) for points in polygons]) - 1] = True
    return found, last


def _upright(runs: NDArray[np.uint32], height: int) -> NDArray[np.float32]:
    """Where a pixel inside and one outside lie side by side, as edges float32 [E, 4] that are as long as can be."""
    ends = np.cumsum(runs, dtype=np.int64)[: len(runs) // 2 * 2]  # an odd run at the end is outside
    # A place differs from its neighbour, a column before, where the runs and the runs a column later differ: between
    # places that end one of both but not the other.
    place, count = np.unique(np.concatenate([ends, ends + height]), return_counts=True)
    start, stop = place[count % 2 == 1].reshape(-1, 2).T
    columns = (stop - 1) // height - start // height + 1
    which = np.repeat(np.arange(len(start)), columns)
    x = np.arange(len(which)) - np.repeat(np.cumsum(columns) - columns, columns) + start[which] // height
    high, low = np.maximum(start[which] - x * height, 0), np.minimum(stop[which] - x * height, height)
    return np.stack([x, high, x, low], 1).astype(np.float32)


def pack(polygons: Sequence[NDArray[np.float32]], runs: NDArray[np.uint32], height: int, width: int) -> dict[str, Any]:
    """Polygons or runs as pycocotools' packed mask, {"size": [height, width], "counts": bytes}."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ConfigurationError("COCO's masks need pycocotools: pip install pycocotools.") from error
    if len(runs):
        return mask.frPyObjects({"size": [height, width], "counts": runs.tolist()}, height, width)
    return mask.merge(mask.frPyObjects([exact(polygon).ravel().tolist() for polygon in polygons], height, width))


def unpack(packed: dict[str, Any]) -> NDArray[np.bool_]:
    """A packed mask as pixels, bool [height, width]; pycocotools' own way warns with NumPy 2."""
    height, width = packed["size"]
    counts = _unpack(packed["counts"].decode())
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def exact(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """The coordinates as the json has them, where that is with two decimals, as COCO's are.

    The rasteriser rounds to fifths of a pixel, and 0.7 as float32 lies on the other side of such a border.
    """
    wide = points.astype(np.float64)
    near = np.round(wide, _DECIMALS)
    return np.where(near.astype(np.float32) == points, near, wide)
