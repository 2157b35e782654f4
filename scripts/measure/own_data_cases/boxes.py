"""COCO annotations and what is taken for them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from .case import MENDED, REFUSED, WORKS, Case, Write, file
from .images import image_bytes, picture

_Change = Callable[[dict[str, Any]], Any]
_MASK = [[4, 4, 20, 4, 20, 20, 4, 20]]


def _annotations() -> dict[str, Any]:
    return {
        "images": [{"id": index, "file_name": f"{index}.jpg", "width": 48, "height": 40} for index in range(1, 5)],
        "annotations": [
            {"id": index, "image_id": (index + 1) // 2, "category_id": index % 2 + 1, "bbox": [4, 4, 16, 16],
             "area": 256, "iscrowd": 0, "segmentation": _MASK}
            for index in range(1, 9)
        ],
        "categories": [{"id": 1, "name": "cell"}, {"id": 2, "name": "nucleus"}],
    }  # fmt: skip


def _folder(
    change: _Change = lambda _: None, in_val: bool = False, to_text: Callable[[str], str | bytes] = str
) -> Write:
    """Return a function that writes two splits; `change` alters the annotations of one, `to_text` its JSON."""

    def write(folder: Path) -> Path:
        for split in ("train", "val"):
            found, is_changed = _annotations(), (split == "val") == in_val
            if is_changed:
                change(found)
            text = json.dumps(found)
            file(f"cells/annotations/instances_{split}.json", to_text(text) if is_changed else text)(folder)
            for index in range(1, 5):
                file(f"cells/{split}/{index}.jpg", image_bytes(picture()))(folder)
        return folder / "cells"

    return write


def _each(part: str, **values: Any) -> _Change:
    return lambda found: [entry.update(values) for entry in found[part]]


def _first(part: str, **values: Any) -> _Change:
    return lambda found: found[part][0].update(values)


def _without(part: str, key: str) -> _Change:
    return lambda found: [entry.pop(key) for entry in found[part]]


def _rename(pattern: str) -> _Change:
    return lambda found: [entry.update(file_name=pattern.format(entry["id"])) for entry in found["images"]]


def _with_masks(**values: Any) -> _Change:
    return _first("annotations", **values)


def _turned(folder: Path) -> Path:
    root = _folder(_each("images", width=40, height=48))(folder)
    exif = Image.Exif()
    exif[274] = 6
    for path in (root / "train").iterdir():
        path.write_bytes(image_bytes(picture(), exif=exif))
    return root


def _missing_image(folder: Path) -> Path:
    root = _folder()(folder)
    (root / "train" / "2.jpg").unlink()
    return root


def _yolo(folder: Path) -> Path:
    return file("yolo/labels/1.txt", "0 .5 .5 .2 .2\n")(folder).parents[1]


def cases() -> Iterator[Case]:
    """Yield folders of two splits."""
    rle = {"size": [40, 48], "counts": "0" * 3}
    uncompressed = {"size": [40, 48], "counts": [100, 20, 1800]}
    rows: list[tuple[str, str, str, Write]] = [
        ("COCO with masks", WORKS, "every object has a mask", _folder()),
        ("no iscrowd", MENDED, "iscrowd", _folder(_without("annotations", "iscrowd"))),
        ("no area", MENDED, "area", _folder(_without("annotations", "area"))),
        ("no segmentation", WORKS, "no masks", _folder(_without("annotations", "segmentation"))),
        ("backslashes in file_name", MENDED, "file names", _folder(_rename("images\\{}.jpg"))),
        ("another case in file_name", MENDED, "file names", _folder(_rename("{}.JPG"))),
        ("a folder before file_name", MENDED, "file names", _folder(_rename("train2017/{}.jpg"))),
        ("a missing image", REFUSED, "2.jpg is missing", _missing_image),
        ("every iscrowd 1", REFUSED, "has iscrowd 1 everywhere", _folder(_each("annotations", iscrowd=1))),
        ("a polygon of two points", WORKS, "no masks", _folder(_with_masks(segmentation=[[1, 1, 5, 5]]))),
        ("segmentation [[]]", WORKS, "no masks", _folder(_with_masks(segmentation=[[]]))),
        ("uncompressed run lengths", WORKS, "", _folder(_with_masks(segmentation=uncompressed))),
        ("damaged run lengths", WORKS, "no masks", _folder(_with_masks(segmentation=rle))),
        ("a box beyond the image", REFUSED, "leaves its image", _folder(_first("annotations", bbox=[40, 4, 30, 8]))),
        ("a box of no width", MENDED, "left out of training: 1", _folder(_first("annotations", bbox=[4, 4, 0, 8]))),
        ("a box of NaN", REFUSED, "is invalid", _folder(_first("annotations", bbox=[float("nan"), 4, 8, 8]))),
        ("a box with two corners", REFUSED, "leaves its image", _folder(_each("annotations", bbox=[20, 20, 47, 39]))),
        ("float boxes", WORKS, "", _folder(_first("annotations", bbox=[4.5, 4.25, 8.5, 8.5]))),
        ("category 0 unused", REFUSED, "name other categories (background)",
         _folder(lambda found: found["categories"].insert(0, {"id": 0, "name": "background"}))),
        ("categories with gaps", WORKS, "", _gaps),
        ("an unknown category", REFUSED, "category", _folder(_first("annotations", category_id=9))),
        ("an unknown image", REFUSED, "image", _folder(_first("annotations", image_id=9))),
        ("an id twice", REFUSED, "id", _folder(_first("images", id=2))),
        ("ids as text", REFUSED, "id", _folder(_first("images", id="one"))),
        ("another name in val", REFUSED, "name other categories (Cell, cell)",
         _folder(_first("categories", name="Cell"), in_val=True)),
        ("turned by EXIF", REFUSED, "EXIF", _turned),
        ("no image with a box in train", REFUSED, "", _folder(lambda found: found["annotations"].clear())),
        ("a byte order mark", WORKS, "", _folder(to_text=lambda text: b"\xef\xbb\xbf" + text.encode())),
        ("a truncated JSON", REFUSED, "", _folder(to_text=lambda text: text[:200])),
        ("a list of detections", REFUSED, "", _folder(to_text=lambda _: "[]")),
        ("YOLO's text files", REFUSED, "is no dataset that a workload reads", _yolo),
    ]  # fmt: skip
    for title, outcome, says, write in rows:
        yield Case("boxes", title, outcome, says, write)


def _gaps(folder: Path) -> Path:
    def change(found: dict[str, Any]) -> None:
        for entry in [*found["categories"], *found["annotations"]]:
            key = "id" if "name" in entry else "category_id"
            entry[key] = entry[key] * 7

    root, found = _folder()(folder), _annotations()
    change(found)
    for split in ("train", "val"):
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(found))
    return root
