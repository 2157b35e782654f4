"""Mend what COCO files of other tools commonly lack or write differently, and say so."""

import os
from pathlib import Path
from typing import Any


def mend(lists: dict[str, list[Any]], folder: Path) -> list[str]:
    """Mend records in place; return for each kind what was mended and how many times.

    A missing `iscrowd` is 0, a missing `area` that of the box. A `file_name` that is missing in `folder` is looked up
    with slashes in place of backslashes, then in any case, then, where its folder is missing, without folders. It is
    taken from the one file that it can mean and that no other record means.
    """
    records = [record for record in lists["annotations"] if isinstance(record, dict)]
    without_crowd = [record for record in records if "iscrowd" not in record]
    without_area = [record for record in records if "area" not in record and _is_box(record.get("bbox"))]
    for record in without_crowd:
        record["iscrowd"] = 0
    for record in without_area:
        record["area"] = record["bbox"][2] * record["bbox"][3]
    slashes, found = _mend_names([record for record in lists["images"] if isinstance(record, dict)], folder)
    counts = {
        "annotations without iscrowd, taken as single objects": len(without_crowd),
        "annotations without area, taken from their box": len(without_area),
        "file names with backslashes, read as slashes": slashes,
        "file names in another case or folder than their files": found,
    }
    return [f"{what}: {count:,}" for what, count in counts.items() if count]


def _mend_names(images: list[dict[str, Any]], folder: Path) -> tuple[int, int]:
    """Return how many file names had backslashes, and how many another case or folder."""
    named = [record for record in images if isinstance(record.get("file_name"), str)]
    slashes = [record for record in named if "\\" in record["file_name"]]
    slashes = [record for record in slashes if not (folder / record["file_name"]).exists()]
    for record in slashes:
        record["file_name"] = record["file_name"].replace("\\", "/")
    listed = _list_files(folder)  # one listing is faster than a query per file
    absent = [record for record in named if record["file_name"] not in listed]
    absent = [record for record in absent if not (folder / record["file_name"]).exists()]  # through a linked folder
    if not absent:
        return len(slashes), 0
    taken = {record["file_name"] for record in named}
    files: dict[str, list[str]] = {}
    for name in listed - taken:
        for key in {name.lower(), os.path.basename(name).lower()}:
            files.setdefault(key, []).append(name)
    wanted: dict[str, list[dict[str, Any]]] = {}
    for record in absent:
        path = record["file_name"]
        candidates = files.get(path.lower(), [])
        if not candidates and not (folder / path).parent.is_dir():
            candidates = files.get(os.path.basename(path).lower(), [])
        if len(candidates) == 1:
            wanted.setdefault(candidates[0], []).append(record)
    found = {name: records[0] for name, records in wanted.items() if len(records) == 1}
    for name, record in found.items():
        record["file_name"] = name
    return len(slashes), len(found)


def _list_files(folder: Path) -> set[str]:
    """Return the paths of all files below the folder, relative to it."""
    found: set[str] = set()
    for parent, _, names in os.walk(folder):
        below = os.path.relpath(parent, folder)
        found.update(names if below == "." else (f"{below}/{name}" for name in names))
    return found


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(type(side) in (int, float) for side in value)
