"""COCO's instances JSON as columns, with a sentence for every problem in it."""

import gc
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError
from ..registry.missing import missing_data
from . import coco_masks, coco_mending
from .coco_masks import MAX_OUTSIDE, Report, Segments
from .coco_problems import Problems

_UNPRINTABLE = re.compile(r"[\x00-\x1f\ud800-\udfff]")  # invalid in names for file systems and terminals
_MAX_SIDE = 65535  # pixels: JPEG's limit; the area of such an image fits into 32 bits
_MAX_COORDINATE = 1e9  # pixels
_INTEGER, _NUMBER, _TEXT, _BOX = "whole number", "number", "string", "list of four numbers"
_COLUMNS = {
    "images": {"id": _INTEGER, "file_name": _TEXT, "height": _INTEGER, "width": _INTEGER},
    "categories": {"id": _INTEGER, "name": _TEXT},
    "annotations": {
        "id": _INTEGER, "image_id": _INTEGER, "category_id": _INTEGER, "bbox": _BOX, "area": _NUMBER,
        "iscrowd": _INTEGER,
    },
}  # fmt: skip
_SINGULAR = {"images": "image", "categories": "category", "annotations": "annotation"}

Column = NDArray[Any]
Table = dict[str, Column]


@dataclass(frozen=True)
class Instances:
    """The columns of an instances JSON in the order of its lists, except that categories are sorted by id.

    `box` is float64 [A, 4], x, y, width and height, clipped where it leaves the image by up to a pixel. `image` and
    `category` are indices into the other tables. `empty` marks boxes without area, `exists` images that are present.
    """

    images: Table
    exists: NDArray[np.bool_]
    categories: Table
    annotations: Table
    image: NDArray[np.int64]
    category: NDArray[np.int64]
    box: NDArray[np.float64]
    empty: NDArray[np.bool_]
    segments: Segments


def read_instances(path: Path, folder: Path, *, masks: bool, masks_required: bool) -> tuple[Instances, Problems]:
    """Read the JSON at `path`, whose images are in `folder`, and find all problems except boxes without area.

    Segmentations are read with `masks`; missing ones are a problem with `masks_required`. Raises `DataError` if the
    file is missing or contains nothing usable.
    """
    problems = Problems()
    lists = _load(path, coco_masks.compact_polygons if masks else coco_masks.drop_segmentation)
    for name in ("images", "categories"):
        if not lists[name]:
            raise DataError(
                f"{path} lists no {_SINGULAR[name]}: it is not a COCO instances file, or its {name} are elsewhere."
            )
    problems.mended = coco_mending.mend(lists, folder)
    images, categories, annotations = (
        _to_columns(path, name, lists, problems) for name in ("images", "categories", "annotations")
    )
    order = np.argsort(categories["id"], kind="stable")
    categories = {key: column[order] for key, column in categories.items()}
    for name, table in (("image", images), ("category", categories), ("annotation", annotations)):
        _check_ids(path, name, table["id"], problems)
    exists = _check_images(path, folder, images, problems)
    report = _annotation_reporter(path, annotations, problems)
    image = _find_ids(annotations, images["id"], "image", report)
    category = _find_ids(annotations, categories["id"], "category", report)
    size = np.stack([images["height"], images["width"]], 1)
    size[((size < 1) | (size > _MAX_SIDE)).any(1)] = -1
    size = np.append(size, [[-1, -1]], 0)[image]  # index -1 selects the last row
    box, empty = _check_boxes(annotations, size, report)
    segmentations = [annotation.get("segmentation") for annotation in lists["annotations"]]
    segments = coco_masks.flatten_segmentations(segmentations, size, report, required=masks_required)
    return Instances(images, exists, categories, annotations, image, category, box, empty, segments), problems


def add_empty_boxes(path: Path, instances: Instances, problems: Problems) -> None:
    """Add the boxes without area to `problems`; COCO's train2017 has two."""
    boxes = instances.annotations["bbox"]
    _annotation_reporter(path, instances.annotations, problems)(
        np.flatnonzero(instances.empty),
        lambda index: f"a box without area ({_format_box(boxes[index])}): remove it; training ignores it",
    )


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable the cycle collector, which would scan a million new objects again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(path: Path, object_hook: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the three lists of the file at `path`."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} cannot be read (it is not a file): put COCO's instances JSON there.")
    try:
        text = path.read_bytes().decode().removeprefix("\ufeff")
    except OSError as error:
        raise missing_data(path, "put COCO's instances JSON there", f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text from byte {error.start} on: it is damaged; fetch it again.") from error
    try:
        with _garbage_collection_disabled():
            lists = json.loads(text, object_hook=object_hook)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON from character {error.pos:,} of {len(text):,} on ({error.msg}): "
            "it is truncated or damaged; fetch it again."
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of too many digits
        raise DataError(f"{path} is not valid JSON ({error}): fetch it again.") from error
    if not isinstance(lists, dict):
        raise DataError(f"{path} contains no JSON object: it is not a COCO instances file.")
    missing = [name for name in _COLUMNS if not isinstance(lists.get(name), list)]
    if missing:
        raise DataError(f"{path} has no list {' and '.join(missing)}: it is not a COCO instances file.")
    return lists


def _to_columns(path: Path, name: str, lists: dict[str, list[Any]], problems: Problems) -> Table:
    """Return the columns of one list; invalid records are reported and removed from the list."""
    types = _COLUMNS[name]
    try:
        return {key: _to_column([record[key] for record in lists[name]], type_) for key, type_ in types.items()}
    except (KeyError, TypeError, ValueError):
        faults = [_find_fault(record, types) for record in lists[name]]
        invalid = np.flatnonzero([fault is not None for fault in faults])
        singular = _SINGULAR[name]
        problems.add(
            invalid, lambda index: f"{path}: {singular} number {index + 1} {faults[index]}: correct or remove it."
        )
        lists[name] = [record for record, fault in zip(lists[name], faults, strict=True) if fault is None]
        return {key: _to_column([record[key] for record in lists[name]], type_) for key, type_ in types.items()}


def _to_column(values: list[Any], type_: str) -> Column:
    """Return the values as an array; raises `ValueError` if one has another type."""
    if type_ == _TEXT:
        column = np.array(values if values else [""])[: len(values)]
        valid = column.dtype.kind == "U" and not _UNPRINTABLE.search("".join(values))
    elif type_ == _BOX:
        column = np.array(values if values else np.empty((0, 4)))
        valid = column.dtype.kind in "biuf" and column.shape == (len(values), 4)
        column = column.astype(np.float64) if valid else column
    else:
        column = np.array(values, None if values else np.int64)
        valid = column.ndim == 1 and column.dtype.kind in ("bi" if type_ == _INTEGER else "biuf")
        column = column.astype(np.int64 if type_ == _INTEGER else np.float64) if valid else column
    if not valid:
        raise ValueError(type_)
    return column


def _find_fault(record: Any, types: dict[str, str]) -> str | None:
    """Return what is wrong with a record, or None."""
    if not isinstance(record, dict):
        return "is not an object"
    if missing := [key for key in types if key not in record]:
        return f"has no {' and '.join(missing)}"
    for key, type_ in types.items():
        if not _has_type(record[key], type_):
            return f"has the {key} {str(record[key])[:40]!r}, which is not a {type_}"
    return None


def _has_type(value: Any, type_: str) -> bool:
    if type_ == _TEXT:
        return isinstance(value, str) and not _UNPRINTABLE.search(value)
    if type_ == _BOX:
        return isinstance(value, list) and len(value) == 4 and all(_has_type(side, _NUMBER) for side in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return type_ == _NUMBER and isinstance(value, float)


def _check_ids(path: Path, name: str, ids: Column, problems: Problems) -> None:
    """Report repeated ids."""
    repeated = np.ones(len(ids), bool)
    repeated[np.unique(ids, return_index=True)[1]] = False
    problems.add(
        np.flatnonzero(repeated), lambda index: f"{path}: {name} id {ids[index]} occurs twice: keep one of the two."
    )


def _check_images(path: Path, folder: Path, images: Table, problems: Problems) -> NDArray[np.bool_]:
    """Report images of invalid size and images whose file is missing; return which are neither."""
    ids, names, height, width = (images[key] for key in ("id", "file_name", "height", "width"))
    valid = (np.minimum(height, width) >= 1) & (np.maximum(height, width) <= _MAX_SIDE)
    problems.add(
        np.flatnonzero(~valid),
        lambda index: f"{path}: image {ids[index]} is {width[index]}x{height[index]} pixels: correct width and height.",
    )
    if not folder.is_dir():
        problems.add_one(str(missing_data(folder, f"put the images of {path} there")))
        return np.zeros(len(ids), bool)
    listings: dict[str, set[str]] = {}  # listing a folder once is faster than one query per file
    absent = []
    for index, name in enumerate(names.tolist()):
        parent, base = os.path.split(name)
        if parent not in listings:
            listings[parent] = _list_folder(folder / parent)
        if base not in listings[parent]:
            absent.append(index)
    missing = np.array(absent, np.int64)
    problems.add(
        missing,
        lambda index: f"{folder / names[index]} is missing: put it back or remove image {ids[index]} from {path}.",
    )
    valid[missing] = False
    return valid


def _list_folder(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:  # its images are then reported as missing
        return set()


def _annotation_reporter(path: Path, annotations: Table, problems: Problems) -> Report:
    """Return a function that adds problems of annotations, given by index."""
    ids = annotations["id"]

    def report(indices: NDArray[Any], has: Callable[[int], str]) -> None:
        problems.add(indices, lambda index: f"{path}: annotation {ids[index]} has {has(index)}.")

    return report


def _find_ids(annotations: Table, ids: Column, name: str, report: Report) -> NDArray[np.int64]:
    """Return the index of each annotation's image or category in `ids`; -1, and a report, where it is not listed."""
    wanted = annotations[f"{name}_id"]
    order = np.argsort(ids, kind="stable")
    position = np.searchsorted(ids, wanted, sorter=order)
    found = position < len(ids)
    position[found] = order[position[found]]
    found[found] = ids[position[found]] == wanted[found]
    report(
        np.flatnonzero(~found),
        lambda index: f"the {name} {wanted[index]}, which is not listed: list it or remove the annotation",
    )
    return np.where(found, position, -1)


def _check_boxes(
    annotations: Table, size: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the boxes clipped to their images, and which have no area; report invalid ones."""
    raw, area = annotations["bbox"], annotations["area"]
    valid = (abs(raw) < _MAX_COORDINATE).all(1) & (area >= 0) & (area < _MAX_COORDINATE**2)  # false for NaN
    report(
        np.flatnonzero(~valid),
        lambda index: f"the box {_format_box(raw[index])} and the area {area[index]:g}, which is invalid: correct it",
    )
    box = np.where(valid[:, None], raw, 0)
    valid &= (box[:, 2:] >= 0).all(1)
    report(
        np.flatnonzero((box[:, 2:] < 0).any(1)),
        lambda index: f"a box with a negative side ({_format_box(box[index])}): write x, y, width, height",
    )
    low, high, edge = box[:, :2], box[:, :2] + box[:, 2:], size[:, ::-1]
    outside = np.maximum(-low, high - edge).max(1, initial=-np.inf)
    too_far = valid & (outside > MAX_OUTSIDE) & (size[:, 0] >= 0)
    report(
        np.flatnonzero(too_far),
        lambda index: (
            f"a box ({_format_box(box[index])}) that leaves its image of {edge[index, 0]}x{edge[index, 1]} pixels "
            f"by {outside[index]:.1f}: correct or remove it"
        ),
    )
    low, high = low.clip(0), np.minimum(high, edge)
    inside = (outside <= 0)[:, None]  # these boxes stay unchanged to the last bit
    clipped = np.where(inside, box, np.concatenate([low, (high - low).clip(0)], 1))
    return clipped, valid & ~too_far & (size[:, 0] >= 0) & (clipped[:, 2:] == 0).any(1)


def _format_box(box: NDArray[np.float64]) -> str:
    return ", ".join(f"{side:g}" for side in box)
