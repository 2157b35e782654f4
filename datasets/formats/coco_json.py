"""COCO's instances json as columns, and a sentence for everything in it that is wrong."""

import gc
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError
from . import coco_masks
from .coco_masks import OUTSIDE, Report, Segments

_UNSPEAKABLE = re.compile(r"[\x00-\x1f\ud800-\udfff]")  # what no file system or terminal takes in a name
_NAMED = 20  # problems of a kind that are told one by one
_LARGEST = 65535  # pixels of a side: JPEG's limit, and two such sides fit into 32 bits
_FAR = 1e9  # pixels: no box reaches so far
_WHOLE, _NUMBER, _TEXT, _BOX = "whole number", "number", "text", "list of four numbers"
_LISTS = {
    "images": {"id": _WHOLE, "file_name": _TEXT, "height": _WHOLE, "width": _WHOLE},
    "categories": {"id": _WHOLE, "name": _TEXT},
    "annotations": {
        "id": _WHOLE, "image_id": _WHOLE, "category_id": _WHOLE, "bbox": _BOX, "area": _NUMBER, "iscrowd": _WHOLE,
    },
}  # fmt: skip
_ONE = {"images": "image", "categories": "category", "annotations": "annotation"}

Column = NDArray[Any]
Table = dict[str, Column]


@dataclass
class Problems:
    """What is wrong with a data set: `count` things, and sentences on the first few of each kind."""

    sentences: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, bad: NDArray[Any], sentence: Callable[[int], str]) -> None:
        """`sentence` is asked for the first of the indexes `bad`, and the rest is counted."""
        self.sentences += [sentence(index) for index in bad[:_NAMED].tolist()]
        if len(bad) > _NAMED:
            self.sentences.append(f"{len(bad) - _NAMED:,} more are like the last one.")
        self.count += len(bad)

    def say(self, sentence: str) -> None:
        """One thing that is wrong."""
        self.add(np.zeros(1, np.int64), lambda _: sentence)

    def refuse(self) -> None:
        """Raises `DataError` with the first problem, if there is one."""
        if self.count > 1:
            first = self.sentences[0].removesuffix(".")
            raise DataError(f"{first}; and {self.count - 1:,} more: timetrial data verify lists them.")
        if self.count:
            raise DataError(self.sentences[0])


@dataclass(frozen=True)
class Instances:
    """The columns of an instances json, as long and in such order as its lists; categories are in order of their ids.

    `box` is float64 [A, 4], x, y, width and height, clipped where it leaves the image by up to a pixel; `image` and
    `category` are indexes into the other tables; `empty` marks boxes without area, `there` images that are.
    """

    images: Table
    there: NDArray[np.bool_]
    categories: Table
    annotations: Table
    image: NDArray[np.int64]
    category: NDArray[np.int64]
    box: NDArray[np.float64]
    empty: NDArray[np.bool_]
    segments: Segments


def examine(path: Path, folder: Path, *, masks: bool, demanded: bool) -> tuple[Instances, Problems]:
    """The json at `path`, whose images lie in `folder`, and all that is wrong with it but boxes without area.

    Segmentations are read if `masks`, and missing ones are a problem if `demanded`. Raises `DataError` where there is
    no such file, or nothing in it to go on with.
    """
    problems = Problems()
    lists = _load(path, coco_masks.compact if masks else coco_masks.leave_out)
    for name in ("images", "categories"):
        if not lists[name]:
            raise DataError(f"{path} lists no {_ONE[name]}: it is no COCO instances file, or its {name} are elsewhere.")
    images, categories, annotations = (
        _table(path, name, lists, problems) for name in ("images", "categories", "annotations")
    )
    order = np.argsort(categories["id"], kind="stable")
    categories = {key: column[order] for key, column in categories.items()}
    for name, table in (("image", images), ("category", categories), ("annotation", annotations)):
        _check_ids(path, name, table["id"], problems)
    there = _check_images(path, folder, images, problems)
    report = _reporter(path, annotations, problems)
    image = _looked_up(annotations, images["id"], "image", report)
    category = _looked_up(annotations, categories["id"], "category", report)
    size = np.stack([images["height"], images["width"]], 1)
    size[((size < 1) | (size > _LARGEST)).any(1)] = -1
    size = np.append(size, [[-1, -1]], 0)[image]  # -1 is the last row
    box, empty = _boxes(annotations, size, report)
    segmentations = [annotation.get("segmentation") for annotation in lists["annotations"]]
    segments = coco_masks.flatten(segmentations, size, report, demanded=demanded)
    return Instances(images, there, categories, annotations, image, category, box, empty, segments), problems


def say_empty(path: Path, found: Instances, problems: Problems) -> None:
    """Adds the boxes without area to `problems`; COCO's train2017 has two."""
    boxes = found.annotations["bbox"]
    _reporter(path, found.annotations, problems)(
        np.flatnonzero(found.empty),
        lambda index: f"a box without area ({_shown(boxes[index])}): remove it, or know that training leaves it out",
    )


@contextmanager
def _without_collecting() -> Iterator[None]:
    """No search for cycles meanwhile: it would look at a million growing objects over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(path: Path, hook: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, list[Any]]:
    """The three lists of the file at `path`."""
    try:
        text = path.read_bytes().decode().removeprefix("\ufeff")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): put COCO's instances json there or set data_dir."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text from byte {error.start} on: it is damaged; fetch it again.") from error
    try:
        with _without_collecting():
            found = json.loads(text, object_hook=hook)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is no JSON from character {error.pos:,} of {len(text):,} on ({error.msg}): "
            "it is cut short or damaged; fetch it again."
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep, a number of too many digits
        raise DataError(f"{path} is no JSON that can be read ({error}): fetch it again.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no JSON object: it is no COCO instances file.")
    missing = [name for name in _LISTS if not isinstance(found.get(name), list)]
    if missing:
        raise DataError(f"{path} lacks the list {' and '.join(missing)}: it is no COCO instances file.")
    return found


def _table(path: Path, name: str, lists: dict[str, list[Any]], problems: Problems) -> Table:
    """The columns of one list; what lacks a key or has a wrong value is reported and removed from the list."""
    kinds = _LISTS[name]
    try:
        return {key: _column([thing[key] for thing in lists[name]], kind) for key, kind in kinds.items()}
    except (KeyError, TypeError, ValueError):
        faults = [_fault(thing, kinds) for thing in lists[name]]
        bad = np.flatnonzero([fault is not None for fault in faults])
        problems.add(bad, lambda index: f"{path}: {_ONE[name]} number {index + 1} {faults[index]}: mend or remove it.")
        lists[name] = [thing for thing, fault in zip(lists[name], faults, strict=True) if fault is None]
        return {key: _column([thing[key] for thing in lists[name]], kind) for key, kind in kinds.items()}


def _column(values: list[Any], kind: str) -> Column:
    """The values as an array; `ValueError` where one is not of its kind."""
    if kind == _TEXT:
        column = np.array(values if values else [""])[: len(values)]
        sound = column.dtype.kind == "U" and not _UNSPEAKABLE.search("".join(values))
    elif kind == _BOX:
        column = np.array(values if values else np.empty((0, 4)))
        sound = column.dtype.kind in "biuf" and column.shape == (len(values), 4)
        column = column.astype(np.float64) if sound else column
    else:
        column = np.array(values, None if values else np.int64)
        sound = column.ndim == 1 and column.dtype.kind in ("bi" if kind == _WHOLE else "biuf")
        column = column.astype(np.int64 if kind == _WHOLE else np.float64) if sound else column
    if not sound:
        raise ValueError(kind)
    return column


def _fault(thing: Any, kinds: dict[str, str]) -> str | None:
    """What is wrong with one thing, or None."""
    if not isinstance(thing, dict):
        return "is no object"
    if missing := [key for key in kinds if key not in thing]:
        return f"lacks {' and '.join(missing)}"
    for key, kind in kinds.items():
        if not _fits(thing[key], kind):
            return f"has the {key} {str(thing[key])[:40]!r}, which is no {kind}"
    return None


def _fits(value: Any, kind: str) -> bool:
    if kind == _TEXT:
        return isinstance(value, str) and not _UNSPEAKABLE.search(value)
    if kind == _BOX:
        return isinstance(value, list) and len(value) == 4 and all(_fits(side, _NUMBER) for side in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return kind == _NUMBER and isinstance(value, float)


def _check_ids(path: Path, name: str, ids: Column, problems: Problems) -> None:
    """Reports ids that stood before."""
    again = np.ones(len(ids), bool)
    again[np.unique(ids, return_index=True)[1]] = False
    problems.add(
        np.flatnonzero(again), lambda index: f"{path}: {name} id {ids[index]} stands twice: keep one of the two."
    )


def _check_images(path: Path, folder: Path, images: Table, problems: Problems) -> NDArray[np.bool_]:
    """Reports images of no size and images whose file is not there; says which are neither."""
    ids, names, height, width = (images[key] for key in ("id", "file_name", "height", "width"))
    sound = (np.minimum(height, width) >= 1) & (np.maximum(height, width) <= _LARGEST)
    problems.add(
        np.flatnonzero(~sound),
        lambda index: f"{path}: image {ids[index]} is {width[index]}x{height[index]} pixels: mend width and height.",
    )
    if not folder.is_dir():
        problems.say(
            f"{folder} is missing: put the images of {path} there (timetrial data fetch brings sets) or set data_dir."
        )
        return np.zeros(len(ids), bool)
    listed: dict[str, set[str]] = {}  # one listing of a folder is faster than a question a file
    absent = []
    for index, name in enumerate(names.tolist()):
        parent, base = os.path.split(name)
        if parent not in listed:
            listed[parent] = _names(folder / parent)
        if base not in listed[parent]:
            absent.append(index)
    missing = np.array(absent, np.int64)
    problems.add(
        missing,
        lambda index: f"{folder / names[index]} is missing: put it back or remove image {ids[index]} from {path}.",
    )
    sound[missing] = False
    return sound


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:  # which its images are then missing from
        return set()


def _reporter(path: Path, annotations: Table, problems: Problems) -> Report:
    """Adds problems of annotations by index, from words on what an annotation has."""
    ids = annotations["id"]

    def report(bad: NDArray[Any], has: Callable[[int], str]) -> None:
        problems.add(bad, lambda index: f"{path}: annotation {ids[index]} has {has(index)}.")

    return report


def _looked_up(annotations: Table, ids: Column, name: str, report: Report) -> NDArray[np.int64]:
    """For each annotation the index of its image or category in `ids`; -1, and reported, where there is none."""
    wanted = annotations[f"{name}_id"]
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids, wanted, sorter=order)
    near = place < len(ids)
    place[near] = order[place[near]]
    near[near] = ids[place[near]] == wanted[near]
    report(
        np.flatnonzero(~near),
        lambda index: f"the {name} {wanted[index]}, which is not listed: list it or remove the annotation",
    )
    return np.where(near, place, -1)


def _boxes(
    annotations: Table, size: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The boxes clipped to their images, and which have no area; those that cannot be boxes are reported."""
    written, area = annotations["bbox"], annotations["area"]
    sound = (abs(written) < _FAR).all(1) & (area >= 0) & (area < _FAR**2)  # which NaN is not
    report(
        np.flatnonzero(~sound),
        lambda index: f"the box {_shown(written[index])} and the area {area[index]:g}, which cannot be: mend it",
    )
    box = np.where(sound[:, None], written, 0)
    sound &= (box[:, 2:] >= 0).all(1)
    report(
        np.flatnonzero((box[:, 2:] < 0).any(1)),
        lambda index: f"a box with a side below 0 ({_shown(box[index])}): write x, y, width, height",
    )
    low, high, edge = box[:, :2], box[:, :2] + box[:, 2:], size[:, ::-1]
    beyond = np.maximum(-low, high - edge).max(1, initial=-np.inf)
    far = sound & (beyond > OUTSIDE) & (size[:, 0] >= 0)
    report(
        np.flatnonzero(far),
        lambda index: (
            f"a box ({_shown(box[index])}) that leaves its image of {edge[index, 0]}x{edge[index, 1]} pixels "
            f"by {beyond[index]:.1f}: mend or remove it"
        ),
    )
    low, high = low.clip(0), np.minimum(high, edge)
    inside = (beyond <= 0)[:, None]  # such sides stay as they were, to the last bit
    clipped = np.where(inside, box, np.concatenate([low, (high - low).clip(0)], 1))
    return clipped, sound & ~far & (size[:, 0] >= 0) & (clipped[:, 2:] == 0).any(1)


def _shown(box: NDArray[np.float64]) -> str:
    return ", ".join(f"{side:g}" for side in box)
