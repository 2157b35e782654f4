"""A pipe, a device or a folder in place of a user's file is one sentence: no reader waits for it or reads forever."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from timetrial.datasets.download import bundles, manifest
from timetrial.datasets.download.worker_pool import WorkerPool
from timetrial.datasets.formats import cifar, coco, imagenet, movielens, parallel_text
from timetrial.datasets.registry import catalog
from timetrial.datasets.text.moses_bpe import MosesBPE
from timetrial.datasets.text.subwords import Subwords
from timetrial.runner.core.errors import ConfigurationError, DataError
from timetrial.workloads.common.detection.data import CocoSource
from timetrial.workloads.common.detection.pretrained_weights import load_torch_file


def read_class_folder(path):
    place = [np.array([value]) for value in (0, 0, -1, 0)]
    return imagenet.ImageSet([str(path)], *place).read(0)


def coco_of(folder, name):
    text = {
        "images": [{"id": 1, "file_name": name, "width": 4, "height": 4}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "ape"}],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(text))
    return path


def check_coco_image(path):
    problems = coco.check(coco_of(path.parent, path.name), path.parent, files=True)
    raise DataError(" ".join(problems))


def read_coco_image(path):
    (path.parent / "images").mkdir()
    (path.parent / "images" / path.name).write_bytes(b"")
    dataset = coco.read(coco_of(path.parent, path.name), path.parent / "images", masks=False)
    (path.parent / "images" / path.name).unlink()
    path.rename(path.parent / "images" / path.name)
    return CocoSource(dataset).read(0)


def find_manifest_fault(path):
    listed = manifest.Manifest({}, [manifest.Entry("0" * 64, 0, path.name)])
    faults = list(manifest.find_faults(path.parent, listed, WorkerPool(1)))
    raise DataError(" ".join(faults))


READERS = {
    "ratings.csv": movielens.read_ratings,
    "ratings.dat.gz": movielens.read_ratings,
    "text.en": lambda path: list(parallel_text.read_lines(path)),
    "text.en.xz": lambda path: list(parallel_text.read_lines(path)),
    "data_batch_1.bin": lambda path: cifar.read(path.parent, (path.name,)),
    "1.jpg": read_class_folder,
    "2.jpg": check_coco_image,
    "3.jpg": read_coco_image,
    "coco.json": lambda path: coco.read(path, path.parent, masks=False),
    "bundle.tar": bundles.read_manifest,
    ".manifest": lambda path: manifest.read(path.parent),
    "a.bin": find_manifest_fault,
    "bpe.codes": lambda path: MosesBPE.read(path.parent),
    "subwords.txt": Subwords.read,
    "weights.pth": lambda path: load_torch_file(path, "them"),
    "toy.yaml": lambda path: catalog.read(path.parent),
}


@pytest.fixture(autouse=True)
def limit():
    """End a reader that waits, which would otherwise hang the tests."""

    def fail(signum, frame):
        raise AssertionError("the reader waits")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def make_pipe(path):
    os.mkfifo(path)


def make_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_pipe, make_device, Path.mkdir])
@pytest.mark.parametrize("name", READERS)
def test_special_file_is_one_sentence(tmp_path, name, make):
    make(tmp_path / name)
    with pytest.raises((DataError, ConfigurationError)) as caught:
        READERS[name](tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name.removeprefix("bpe.") in str(caught.value)


@pytest.mark.parametrize("make", [make_pipe, make_device])
@pytest.mark.parametrize("shard", ["shard.tar", "shard-00000"])
def test_special_files_among_shards_are_passed_over(tmp_path, shard, make):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        make(tmp_path / split / shard)
    with pytest.raises(DataError, match="train is empty"):
        imagenet.open_dataset(tmp_path)
