"""Synthetic images are reproducible, complete and available in every layout."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import cifar
from timetrial.datasets.synthetic import images
from timetrial.datasets.synthetic.images import ClassificationSpec, write_cifar, write_images
from timetrial.datasets.synthetic.spec_digest import path_with_digest
from timetrial.runner.core.errors import ConfigurationError, DataError


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", ["folders", "tfrecord", "webdataset"])
def test_equal_specs_give_equal_bytes_and_others_another_path(tmp_path, layout):
    for name in ("one", "two"):
        write_images(tmp_path / name, ClassificationSpec(2, 3, 2, 24, layout=layout))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    changed = (
        ClassificationSpec(2, 3, 2, 24, layout=layout),
        ClassificationSpec(2, 3, 2, 25, layout=layout),
        ClassificationSpec(2, 3, 2, 24, seed=2, layout=layout),
    )
    assert len({path_with_digest(tmp_path / "shapes", spec) for spec in changed}) == 3
    write_images(tmp_path / "three", changed[2])
    assert not set(contents(tmp_path / "one").values()) & set(contents(tmp_path / "three").values())


def test_folders_contain_distinct_jpegs(tmp_path):
    write_images(tmp_path / "shapes", ClassificationSpec(3, 4, 2, 40))
    found = contents(tmp_path / "shapes")
    assert len(found) == len(set(found.values())) == 3 * (4 + 2)
    for split, count in (("train", 4), ("val", 2)):
        for name in ("cross", "disc", "ring"):
            paths = sorted((tmp_path / "shapes" / split / name).iterdir())
            assert [path.name for path in paths] == [f"{number:05d}.jpg" for number in range(count)]
    with Image.open(tmp_path / "shapes/train/ring/00000.jpg") as image:
        assert (image.format, image.mode, image.width) == ("JPEG", "RGB", 40)
        assert 30 <= image.height <= 53


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("tfrecord", ["train-00000-of-00002", "train-00001-of-00002"]),
        ("webdataset", ["train-000000.tar", "train-000001.tar"]),
    ],
)
def test_shards_have_the_usual_names(tmp_path, monkeypatch, layout, names):
    monkeypatch.setattr(images, "_IMAGES_PER_SHARD", 6)
    write_images(tmp_path / "shapes", ClassificationSpec(2, 4, 3, 24, layout=layout))
    assert sorted(path.name for path in (tmp_path / "shapes/train").iterdir()) == names
    assert len(list((tmp_path / "shapes/val").iterdir())) == 1


def test_cifar_files_contain_every_image_once(tmp_path):
    write_cifar(tmp_path / "cifar", ClassificationSpec(3, 4, 2, 64))
    pixels, labels = cifar.split(cifar.read(tmp_path / "cifar", cifar.TRAIN_FILES))
    assert np.bincount(labels).tolist() == [4, 4, 4]
    assert len(np.unique(pixels.reshape(12, -1), axis=0)) == 12
    assert cifar.count(tmp_path / "cifar", cifar.VAL_FILES) == 6


def test_rejects_fewer_images_than_cifar_files(tmp_path):
    with pytest.raises(ConfigurationError, match="5 training files"):
        write_cifar(tmp_path / "cifar", ClassificationSpec(2, 2, 1))
    assert not list(tmp_path.iterdir())


def test_concurrent_writers_of_one_folder(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_images(tmp_path / "shapes", ClassificationSpec(2, 2, 1, 24)), range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["shapes"]
    assert len(contents(tmp_path / "shapes")) == 6


def test_interruption_leaves_no_files(tmp_path, monkeypatch):
    def interrupt(name, *arguments, **named):
        if name == "disc":
            raise KeyboardInterrupt
        return np.zeros((3, 24, 24), dtype=np.uint8)

    monkeypatch.setattr(images, "render_image", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_images(tmp_path / "shapes", ClassificationSpec(2, 2, 1, 24))
    assert not list(tmp_path.iterdir())


def test_reports_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set data_dir"):
        write_images(tmp_path / "file" / "shapes", ClassificationSpec(2, 1, 1, 24))


@pytest.mark.parametrize(
    "changed",
    [{"num_classes": 1}, {"num_classes": 9}, {"train_per_class": 0}, {"val_per_class": 0}, {"width": 15}],
    ids=str,
)
def test_rejects_invalid_spec(changed):
    with pytest.raises(ValueError, match="num_classes must be 2 to 8"):
        ClassificationSpec(**changed)


def test_rejects_unknown_layout():
    with pytest.raises(ValueError, match="layout must be folders, tfrecord or webdataset, not lmdb"):
        ClassificationSpec(layout="lmdb")
