#!/usr/bin/env python
"""Write many JPEGs of ImageNet's or COCO's size with all processor cores, to measure loaders of image workloads.

    python -P scripts/data/write_jpegs.py imagenet|coco OUT [--images N] [--times N]

`imagenet` writes OUT/{train,val}/<class>/*.jpg for `recipe.data.folder=OUT`, `coco` OUT/{train,val}/*.jpg and
OUT/annotations/instances_{train,val}.json. An epoch lists every training image --times times. Prints one JSON line:
training images, their mean size in bytes, and the length of an epoch.
"""

import argparse
import itertools
import json
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset
from timetrial.datasets.synthetic.images import ClassificationSpec, write_images

_CLASSES = 8
_IMAGES_PER_PART = 40  # of training, besides some of validation: what a process writes at a time
_ID_STRIDE = 1 << 20  # between the ids of two parts


def write_part(kind: str, folder: Path, seed: int) -> None:
    """Write one of the parts that are merged."""
    if kind == "imagenet":
        # About 480 by 500 pixels, somewhat more than ImageNet's.
        write_images(folder, ClassificationSpec(_CLASSES, _IMAGES_PER_PART // _CLASSES, 1, width=480, seed=seed))
    else:
        spec = DetectionSpec(_IMAGES_PER_PART, 8, (640, 640), (480, 480), _CLASSES, max_objects=12, seed=seed)
        write_detection_dataset(folder, spec)


def merge_folders(parts: list[Path], out: Path, times: int) -> None:
    """Move the files of all parts into one folder for each class; further listings are hard links."""
    for number, part in enumerate(parts):
        for file in part.glob("*/*/*.jpg"):
            place = file.parent.relative_to(part)
            folder = out / place
            folder.mkdir(parents=True, exist_ok=True)
            moved = file.rename(folder / f"{number}_{file.name}")
            for repeat in range(1, times if place.parts[0] == "train" else 1):
                os.link(moved, folder / f"{number}_{repeat}_{file.name}")


def merge_annotations(parts: list[Path], out: Path, times: int) -> None:
    """Move the files of all parts into one folder for each split, and list them in one file of annotations."""
    (out / "annotations").mkdir(parents=True)
    for split, repeats in (("train", times), ("val", 1)):
        (out / split).mkdir()
        merged: dict[str, Any] = {}
        for number, part in enumerate(parts):
            for file in (part / split).iterdir():
                file.rename(out / split / f"{number}_{file.name}")
            instances = json.loads((part / "annotations" / f"instances_{split}.json").read_text(encoding="utf-8"))
            merged = merged or instances | {"images": [], "annotations": []}
            for repeat in range(repeats):
                offset = (number * repeats + repeat) * _ID_STRIDE
                for image in instances["images"]:
                    name = f"{number}_{image['file_name']}"
                    merged["images"].append(image | {"id": image["id"] + offset, "file_name": name})
                for item in instances["annotations"]:
                    own = {"id": item["id"] + offset, "image_id": item["image_id"] + offset}
                    merged["annotations"].append(item | own)
        path = out / "annotations" / f"instances_{split}.json"
        path.write_text(json.dumps(merged, separators=(",", ":")), encoding="utf-8")


def main() -> None:
    """Write the dataset of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("imagenet", "coco"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=20_000, help="training images, about")
    parser.add_argument("--times", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists: remove it or choose another folder.")
    if min(arguments.images, arguments.times) < 1:
        parser.error("--images and --times must be 1 or more.")
    temporary = arguments.out.with_name(f"{arguments.out.name}.parts")
    parts = [temporary / str(number) for number in range(-(-arguments.images // _IMAGES_PER_PART))]
    with ProcessPoolExecutor() as pool:
        list(pool.map(write_part, itertools.repeat(arguments.kind), parts, range(len(parts))))
    merge = merge_folders if arguments.kind == "imagenet" else merge_annotations
    merge(parts, arguments.out, arguments.times)
    shutil.rmtree(temporary)
    files = list(arguments.out.glob("train/**/*.jpg"))
    sizes = {file.stat().st_ino: file.stat().st_size for file in files}
    listed = len(files) if arguments.kind == "imagenet" else len(files) * arguments.times
    print(json.dumps({"files": len(sizes), "bytes": round(sum(sizes.values()) / len(sizes)), "epoch": listed}))


if __name__ == "__main__":
    main()
