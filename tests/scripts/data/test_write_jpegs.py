"""Datasets of many JPEGs: the loaders read them, and list every file as often as asked."""

import json
import subprocess
import sys

import pytest
from pycocotools.coco import COCO

from timetrial.datasets.formats import imagenet

pytestmark = pytest.mark.integration


def write(root, *arguments):
    command = [sys.executable, "-P", str(root / "scripts/data/write_jpegs.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_class_folders(root, tmp_path):
    result = json.loads(write(root, "imagenet", tmp_path / "out", "--images", "80", "--times", "3").stdout)
    assert (result["files"], result["epoch"]) == (80, 240)
    assert 50_000 < result["bytes"] < 150_000
    train, _, num_classes, _ = imagenet.open_dataset(tmp_path / "out")
    assert (len(train), num_classes) == (240, 8)


def test_coco(root, tmp_path):
    result = json.loads(write(root, "coco", tmp_path / "out", "--images", "80", "--times", "2").stdout)
    assert (result["files"], result["epoch"]) == (80, 160)
    coco = COCO(tmp_path / "out/annotations/instances_train.json")
    assert len(coco.imgs) == 160
    names = [image["file_name"] for image in coco.imgs.values()]
    assert len(set(names)) == 80
    assert all((tmp_path / "out/train" / name).is_file() for name in names)
    # Both listings of an image have the same objects.
    boxes = {}
    for image in coco.imgs.values():
        objects = [coco.anns[number]["bbox"] for number in coco.getAnnIds(image["id"])]
        assert boxes.setdefault(image["file_name"], objects) == objects


def test_a_folder_that_exists_is_kept(root, tmp_path):
    result = write(root, "coco", tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith(f"{tmp_path} exists: remove it or choose another folder.")
