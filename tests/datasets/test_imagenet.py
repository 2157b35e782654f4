"""Image folders as they come: odd colours and names are read, what is broken is named."""

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets import imagenet
from timetrial.runner.errors import DataError, Exit


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        for number, name in enumerate(("ape", "bee")):
            (tmp_path / split / name).mkdir(parents=True)
            picture((tmp_path / split / name / "1.jpg"), 60 * number)
    return tmp_path


def picture(path, shade=100, mode="RGB", kind="JPEG", size=(50, 40)):
    Image.fromarray(np.full((size[1], size[0], 3), shade, dtype=np.uint8)).convert(mode).save(path, kind)


def read(folder):
    return imagenet.read_folders(folder / "train", folder / "val")


def test_folders_become_files_and_labels(folder):
    picture(folder / "train" / "bee" / "0.JPEG")
    (folder / "train" / "bee" / "notes.txt").touch()
    train, val, classes = read(folder)
    assert classes == ["ape", "bee"]
    assert train.files == ["ape/1.jpg", "bee/0.JPEG", "bee/1.jpg"]
    assert train.labels.tolist() == [0, 1, 1]
    assert len(val) == 2


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("L", "PNG")]
)
def test_any_colours_under_any_name_become_rgb(tmp_path, mode, kind):
    picture(tmp_path / "image.jpg", 100, mode, kind)
    image = imagenet.read_image(tmp_path / "image.jpg")
    assert image.shape == (3, 40, 50)
    assert abs(image.float().mean() - 100) < 4


@pytest.mark.parametrize("data", [b"", b"nonsense", None])
def test_a_broken_image_is_named(tmp_path, data):
    picture(tmp_path / "image.jpg")
    whole = (tmp_path / "image.jpg").read_bytes()
    (tmp_path / "image.jpg").write_bytes(whole[: len(whole) // 2] if data is None else data)
    with pytest.raises(DataError, match=r"image\.jpg cannot be decoded") as caught:
        imagenet.read_image(tmp_path / "image.jpg")
    assert caught.value.exit_code == Exit.DATA


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "val" / "bee" / "1.jpg").unlink(), "val/bee holds no image"),
        (lambda folder: (folder / "train" / "cat").mkdir(), "val lacks the class cat"),
        (lambda folder: (folder / "val" / "cat").mkdir(), "train lacks the class cat"),
        (lambda folder: (folder / "val").rename(folder / "test"), "val is missing"),
    ],
)
def test_folders_that_do_not_fit_are_refused(folder, spoil, words):
    spoil(folder)
    with pytest.raises(DataError, match=words):
        read(folder)
