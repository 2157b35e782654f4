"""COCO datasets of the tests."""

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import coco
from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset

SQUARE = [5.0, 5.0, 15.0, 5.0, 15.0, 15.0, 5.0, 15.0]


@pytest.fixture(scope="module")
def coco_scenes(tmp_path_factory):
    """Return synthetic scenes whose annotations are unsorted, as COCO's are."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_detection_dataset(folder, DetectionSpec(num_train=48, num_val=4, num_classes=5))
    path = folder / "annotations/instances_train.json"
    found = json.loads(path.read_text())
    np.random.default_rng(1).shuffle(found["annotations"])
    found["categories"].reverse()
    path.write_text(json.dumps(found))
    return path, folder / "train"


@pytest.fixture
def read_official():
    """Return a function that reads an instances JSON with pycocotools."""

    def read(path):
        from pycocotools.coco import COCO

        with contextlib.redirect_stdout(io.StringIO()):
            return COCO(str(path))

    return read


@dataclass
class TinyCoco:
    """The content `found` of the JSON at `path`, which is written before it is read, and a folder of images."""

    path: Path
    folder: Path
    found: dict[str, Any]

    @staticmethod
    def image(number, name, width, height):
        return {"id": number, "file_name": name, "width": width, "height": height}

    @staticmethod
    def annotation(number, of, category, box, **changed):
        made = {"id": number, "image_id": of, "category_id": category, "bbox": box, "area": 100, "iscrowd": 0}
        return made | {"segmentation": [SQUARE]} | changed

    def read(self, **named):
        self.path.write_text(json.dumps(self.found))
        return coco.read(self.path, self.folder, **{"masks": True, **named})

    def check(self, **named):
        self.path.write_text(json.dumps(self.found))
        sentences = coco.check(self.path, self.folder, **named)
        assert not [sentence for sentence in sentences if "\n" in sentence or not sentence.endswith(".")]
        return sentences


@pytest.fixture
def tiny_coco(tmp_path):
    """Return a dataset of two images (40x30, 30x40), three annotations and two categories."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name, size in (("a.jpg", (40, 30)), ("b.png", (30, 40))):
        Image.new("RGB", size, (90, 120, 60)).save(folder / name)
    found = {
        "images": [TinyCoco.image(7, "a.jpg", 40, 30), TinyCoco.image(3, "b.png", 30, 40)],
        "annotations": [
            TinyCoco.annotation(11, 3, 9, [2, 3, 10, 12]),
            TinyCoco.annotation(12, 7, 4, [5, 5, 10, 10]),
            TinyCoco.annotation(
                13, 7, 9, [0, 0, 40, 30], iscrowd=1, segmentation={"size": [30, 40], "counts": [600, 500, 100]}
            ),
        ],
        "categories": [{"id": 9, "name": "cat"}, {"id": 4, "name": "ape"}],
    }
    return TinyCoco(tmp_path / "instances.json", folder, found)
