"""The three forms of ImageNet hold the same images; whatever is missing, empty or on one side only is named."""

import shutil

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import imagenet, jpeg, shards
from timetrial.datasets.synthetic.images import ClassificationSpec, write_images
from timetrial.runner.core.errors import DataError, Exit


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        for number, name in enumerate(("ape", "bee")):
            (tmp_path / split / name).mkdir(parents=True)
            picture(tmp_path / split / name / "1.jpg", 60 * number)
    return tmp_path


def picture(path, shade=100, mode="RGB", kind="JPEG"):
    Image.fromarray(np.full((40, 50, 3), shade, dtype=np.uint8)).convert(mode).save(path, kind)


def in_form(tmp_path, form):
    write_images(tmp_path / form, ClassificationSpec(3, 4, 2, 40, layout=form))
    return imagenet.open_sets(tmp_path / form)


def pairs(images):
    """The encoded images and their classes."""
    return [(images.read(index), int(images.label[index])) for index in range(len(images))]


def refused(function, *arguments, words):
    with pytest.raises(DataError, match=words) as caught:
        function(*arguments)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)


def test_all_forms_hold_the_same_images_and_classes(tmp_path):
    *sets, classes, form = in_form(tmp_path, "folders")
    assert (classes, form) == (3, "folders")
    assert [images.label.tolist() for images in sets] == [[0] * 4 + [1] * 4 + [2] * 4, [0, 0, 1, 1, 2, 2]]
    files = [path.read_bytes() for path in sorted((tmp_path / "folders/train").rglob("*.jpg"))]
    assert [data for data, _ in pairs(sets[0])] == files
    for name in ("tfrecord", "webdataset"):
        *others, classes, form = in_form(tmp_path, name)
        assert (classes, form) == (3, name)
        assert [pairs(images) for images in others] == [pairs(images) for images in sets]


def test_folders_are_numbered_by_name_and_odd_files_are_told_apart(folder):
    picture(folder / "train/bee/0.JPEG")
    picture(folder / "train/bee/2.png", kind="PNG")
    (folder / "train/bee/notes.txt").touch()
    (folder / "train/.cache").mkdir()
    train, val, classes, _ = imagenet.open_sets(folder)
    assert [str(path.relative_to(folder / "train")) for path in train.files] == [
        "ape/1.jpg", "bee/0.JPEG", "bee/1.jpg", "bee/2.png",
    ]  # fmt: skip
    assert train.label.tolist() == [0, 1, 1, 1]
    assert (len(train), len(val), classes) == (4, 2, 2)
    assert train.name(1) == str(folder / "train/bee/0.JPEG")


def test_the_reference_scripts_name_of_the_validation_set_is_known(folder):
    (folder / "val").rename(folder / "validation")
    assert len(imagenet.open_sets(folder)[1]) == 2


@pytest.mark.parametrize(("write", "suffix"), [(shards.write_tar, ".tar"), (shards.write_tfrecord, "")])
def test_numbers_of_shards_become_numbers_from_nought(tmp_path, write, suffix):
    parts = [("train", 0, 1000), ("train", 1, 1), ("train", 2, 30), ("val", 0, 30), ("val", 1, 1000), ("val", 2, 1)]
    for split, shard, label in parts:
        (tmp_path / split).mkdir(exist_ok=True)
        write(tmp_path / split / f"{shard}{suffix}", [(b"%d" % label, label)] * 2)
    train, val, classes, _ = imagenet.open_sets(tmp_path)
    assert classes == 3
    assert pairs(train) == [(b"1000", 2)] * 2 + [(b"1", 0)] * 2 + [(b"30", 1)] * 2
    assert pairs(val) == [(b"30", 1)] * 2 + [(b"1000", 2)] * 2 + [(b"1", 0)] * 2
    assert train.name(5) == f"the image at byte {train.offset[5]} of {tmp_path}/train/2{suffix}"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "val/bee/1.jpg").unlink(), r"/val/bee holds no image"),
        (lambda folder: (folder / "train/cat").mkdir(), r"/train/cat holds no image"),
        (lambda folder: shutil.copytree(folder / "train/bee", folder / "train/cat"), r"/val lacks the class cat"),
        (lambda folder: shutil.copytree(folder / "val/bee", folder / "val/cat"), r"/train lacks the class cat"),
        (lambda folder: (folder / "val").rename(folder / "test"), r"/val is missing"),
        (lambda folder: (folder / "train").rename(folder / "test"), r"/train is missing"),
        (shutil.rmtree, r"/train is missing"),
        (lambda folder: shutil.rmtree(folder / "val/ape") or shutil.rmtree(folder / "val/bee"), "lacks the class ape"),
        (lambda folder: shutil.rmtree(folder / "train/ape") or shutil.rmtree(folder / "train/bee"), "train is empty"),
    ],
)
def test_folders_that_do_not_fit_are_refused(folder, spoil, words):
    spoil(folder)
    refused(imagenet.open_sets, folder, words=words)


@pytest.mark.parametrize(("write", "suffix"), [(shards.write_tar, ".tar"), (shards.write_tfrecord, "")])
def test_shards_that_do_not_fit_are_refused(tmp_path, write, suffix):
    for split, labels in (("train", (1, 2, 3)), ("val", (1, 3))):
        (tmp_path / split).mkdir()
        write(tmp_path / split / f"shard{suffix}", [(b"data", label) for label in labels])
    refused(imagenet.open_sets, tmp_path, words=r"/val lacks the class 2")
    path = tmp_path / "val" / f"shard{suffix}"
    path.write_bytes(path.read_bytes()[:100])
    refused(imagenet.open_sets, tmp_path, words=rf"/val/shard{suffix} is cut short")
    path.unlink()
    refused(imagenet.open_sets, tmp_path, words=r"/val lacks the class 1, 2, 3")


@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_bytes(path.read_bytes()[:300]), lambda path: path.write_bytes(b"no image")]
)
def test_a_broken_image_is_counted_and_named_when_it_is_read(folder, spoil):
    spoil(folder / "train/bee/1.jpg")
    train = imagenet.open_sets(folder)[0]
    assert len(train) == 2
    refused(lambda: jpeg.plain(train.read(1), train.name(1)), words=r"/train/bee/1\.jpg cannot be decoded")


def test_an_image_that_went_away_is_named(folder):
    train = imagenet.open_sets(folder)[0]
    (folder / "train/bee/1.jpg").unlink()
    refused(train.read, 1, words=r"/train/bee/1\.jpg cannot be read \(No such file or directory\)")


@pytest.mark.parametrize("form", ["tfrecord", "webdataset"])
def test_a_shard_that_shrank_after_it_was_opened_is_named(tmp_path, form):
    train = in_form(tmp_path, form)[0]
    path = train.files[0]
    path.write_bytes(path.read_bytes()[: train.offset[-1] + 300])
    last = len(train) - 1
    words = rf"^the image at byte \d+ of {path} cannot be decoded"
    refused(lambda: jpeg.plain(train.read(last), train.name(last)), words=words)
