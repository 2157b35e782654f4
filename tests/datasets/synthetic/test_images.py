"""The generated photographs: equal for equal settings, in whole folders, in every form."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import cifar
from timetrial.datasets.synthetic import images
from timetrial.datasets.synthetic.images import Shapes, path_of, write_cifar, write_images
from timetrial.runner.core.errors import ConfigurationError, DataError


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", ["folders", "tfrecord", "webdataset"])
def test_equal_settings_give_equal_bytes_and_others_another_folder(tmp_path, form):
    for name in ("one", "two"):
        write_images(tmp_path / name, Shapes(2, 3, 2, 24, form=form))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    changed = (Shapes(2, 3, 2, 24, form=form), Shapes(2, 3, 2, 25, form=form), Shapes(2, 3, 2, 24, seed=2, form=form))
    assert len({path_of(tmp_path / "shapes", shapes) for shapes in changed}) == 3
    write_images(tmp_path / "three", changed[2])
    assert not set(contents(tmp_path / "one").values()) & set(contents(tmp_path / "three").values())


def test_folders_hold_as_many_different_jpegs_as_asked(tmp_path):
    write_images(tmp_path / "shapes", Shapes(3, 4, 2, 40))
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
    ("form", "names"),
    [
        ("tfrecord", ["train-00000-of-00002", "train-00001-of-00002"]),
        ("webdataset", ["train-000000.tar", "train-000001.tar"]),
    ],
)
def test_shards_are_named_as_the_originals(tmp_path, monkeypatch, form, names):
    monkeypatch.setattr(images, "_SHARD", 6)
    write_images(tmp_path / "shapes", Shapes(2, 4, 3, 24, form=form))
    assert sorted(path.name for path in (tmp_path / "shapes/train").iterdir()) == names
    assert len(list((tmp_path / "shapes/val").iterdir())) == 1


def test_cifar_files_hold_every_image_once(tmp_path):
    write_cifar(tmp_path / "cifar", Shapes(3, 4, 2, 64))
    pixels, labels = cifar.read(tmp_path / "cifar", cifar.TRAIN)
    assert np.bincount(labels).tolist() == [4, 4, 4]
    assert len(np.unique(pixels.reshape(12, -1), axis=0)) == 12
    assert cifar.count(tmp_path / "cifar", cifar.VAL) == 6


def test_fewer_images_than_cifars_files_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="5 training files"):
        write_cifar(tmp_path / "cifar", Shapes(2, 2, 1))
    assert not list(tmp_path.iterdir())


def test_many_runs_write_one_folder_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_images(tmp_path / "shapes", Shapes(2, 2, 1, 24)), range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["shapes"]
    assert len(contents(tmp_path / "shapes")) == 6


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(name, *arguments, **named):
        if name == "disc":
            raise KeyboardInterrupt
        return np.zeros((3, 24, 24), dtype=np.uint8)

    monkeypatch.setattr(images, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_images(tmp_path / "shapes", Shapes(2, 2, 1, 24))
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set data_dir"):
        write_images(tmp_path / "file" / "shapes", Shapes(2, 1, 1, 24))


@pytest.mark.parametrize("changed", [{"classes": 1}, {"classes": 9}, {"train": 0}, {"val": 0}, {"width": 15}], ids=str)
def test_what_cannot_be_drawn_is_refused(changed):
    with pytest.raises(ValueError, match="classes must be 2 to 8"):
        Shapes(**changed)


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="form must be folders, tfrecord or webdataset, not lmdb"):
        Shapes(form="lmdb")
