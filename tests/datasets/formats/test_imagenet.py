"""All layouts of ImageNet give the same images; what is missing, empty or in one split only is named."""

import os
import shutil
from pathlib import Path

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


def write_layout(tmp_path, layout):
    write_images(tmp_path / layout, ClassificationSpec(3, 4, 2, 40, layout=layout))
    return imagenet.open_dataset(tmp_path / layout)


def pairs(images):
    """Return the encoded images and their classes."""
    return [(images.read(index), int(images.label[index])) for index in range(len(images))]


def assert_rejected(function, *arguments, message):
    with pytest.raises(DataError, match=message) as caught:
        function(*arguments)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)


def test_all_layouts_give_the_same_images_and_classes(tmp_path):
    *sets, num_classes, layout = write_layout(tmp_path, "folders")
    assert (num_classes, layout) == (3, "folders")
    assert [images.label.tolist() for images in sets] == [[0] * 4 + [1] * 4 + [2] * 4, [0, 0, 1, 1, 2, 2]]
    files = [path.read_bytes() for path in sorted((tmp_path / "folders/train").rglob("*.jpg"))]
    assert [data for data, _ in pairs(sets[0])] == files
    for name in ("tfrecord", "webdataset"):
        *others, num_classes, layout = write_layout(tmp_path, name)
        assert (num_classes, layout) == (3, name)
        assert [pairs(images) for images in others] == [pairs(images) for images in sets]


def test_classes_are_numbered_by_name_and_other_files_ignored(folder):
    picture(folder / "train/bee/0.JPEG")
    picture(folder / "train/bee/2.png", kind="PNG")
    (folder / "train/bee/notes.txt").touch()
    (folder / "train/.cache").mkdir()
    train, val, num_classes, _ = imagenet.open_dataset(folder)
    assert [os.path.relpath(path, folder / "train") for path in train.files] == [
        "ape/1.jpg", "bee/0.JPEG", "bee/1.jpg", "bee/2.png",
    ]  # fmt: skip
    assert train.label.tolist() == [0, 1, 1, 1]
    assert (len(train), len(val), num_classes) == (4, 2, 2)
    assert train.name(1) == str(folder / "train/bee/0.JPEG")


def test_accepts_folder_named_validation(folder):
    (folder / "val").rename(folder / "validation")
    assert len(imagenet.open_dataset(folder)[1]) == 2


@pytest.mark.parametrize(("write", "suffix"), [(shards.write_tar, ".tar"), (shards.write_tfrecord, "")])
def test_shard_labels_are_renumbered_from_zero(tmp_path, write, suffix):
    parts = [("train", 0, 1000), ("train", 1, 1), ("train", 2, 30), ("val", 0, 30), ("val", 1, 1000), ("val", 2, 1)]
    for split, shard, label in parts:
        (tmp_path / split).mkdir(exist_ok=True)
        write(tmp_path / split / f"{shard}{suffix}", [(b"%d" % label, label)] * 2)
    train, val, num_classes, _ = imagenet.open_dataset(tmp_path)
    assert num_classes == 3
    assert pairs(train) == [(b"1000", 2)] * 2 + [(b"1", 0)] * 2 + [(b"30", 1)] * 2
    assert pairs(val) == [(b"30", 1)] * 2 + [(b"1000", 2)] * 2 + [(b"1", 0)] * 2
    assert train.name(5) == f"the image at byte {train.offset[5]} of {tmp_path}/train/2{suffix}"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "val/bee/1.jpg").unlink(), r"/val/bee contains no image"),
        (lambda folder: (folder / "train/cat").mkdir(), r"/train/cat contains no image"),
        (lambda folder: shutil.copytree(folder / "train/bee", folder / "train/cat"), r"/val lacks the class cat"),
        (lambda folder: shutil.copytree(folder / "val/bee", folder / "val/cat"), r"/train lacks the class cat"),
        (lambda folder: (folder / "val").rename(folder / "dev"), r"/val is missing"),
        (lambda folder: (folder / "train").rename(folder / "test"), r"/train is missing"),
        (shutil.rmtree, r"/train is missing"),
        (lambda folder: shutil.rmtree(folder / "val/ape") or shutil.rmtree(folder / "val/bee"), "lacks the class ape"),
        (lambda folder: shutil.rmtree(folder / "train/ape") or shutil.rmtree(folder / "train/bee"), "train is empty"),
    ],
)
def test_rejects_inconsistent_folders(folder, damage, message):
    damage(folder)
    assert_rejected(imagenet.open_dataset, folder, message=message)


@pytest.mark.parametrize(("write", "suffix"), [(shards.write_tar, ".tar"), (shards.write_tfrecord, "")])
def test_rejects_inconsistent_shards(tmp_path, write, suffix):
    for split, labels in (("train", (1, 2, 3)), ("val", (1, 3))):
        (tmp_path / split).mkdir()
        write(tmp_path / split / f"shard{suffix}", [(b"data", label) for label in labels])
    assert_rejected(imagenet.open_dataset, tmp_path, message=r"/val lacks the class 2")
    path = tmp_path / "val" / f"shard{suffix}"
    path.write_bytes(path.read_bytes()[:100])
    assert_rejected(imagenet.open_dataset, tmp_path, message=rf"/val/shard{suffix} is truncated")
    path.unlink()
    assert_rejected(imagenet.open_dataset, tmp_path, message=r"/val lacks the class 1, 2, 3")


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(path.read_bytes()[:300]), lambda path: path.write_bytes(b"no image")]
)
def test_damaged_image_is_named_when_it_is_read(folder, damage):
    damage(folder / "train/bee/1.jpg")
    train = imagenet.open_dataset(folder)[0]
    assert len(train) == 2
    assert_rejected(
        lambda: jpeg.to_rgb_jpeg(train.read(1), train.name(1)), message=r"/train/bee/1\.jpg cannot be decoded"
    )


def test_deleted_image_is_named(folder):
    train = imagenet.open_dataset(folder)[0]
    (folder / "train/bee/1.jpg").unlink()
    assert_rejected(train.read, 1, message=r"/train/bee/1\.jpg cannot be read \(No such file or directory\)")


@pytest.mark.parametrize("layout", ["tfrecord", "webdataset"])
def test_shard_truncated_after_opening_is_named(tmp_path, layout):
    train = write_layout(tmp_path, layout)[0]
    path = Path(train.files[0])
    path.write_bytes(path.read_bytes()[: train.offset[-1] + 300])
    last = len(train) - 1
    message = rf"^the image at byte \d+ of {path} cannot be decoded"
    assert_rejected(lambda: jpeg.to_rgb_jpeg(train.read(last), train.name(last)), message=message)


@pytest.mark.parametrize("layout", ["folders", "tfrecord", "webdataset"])
def test_index_holds_what_was_opened_and_follows_changes(tmp_path, layout):
    opened, folder = write_layout(tmp_path, layout), tmp_path / layout
    index = imagenet.write_index(folder, tmp_path / "prepared")
    read = imagenet.read_index(index, folder)
    assert read[2:] == opened[2:]
    for before, after in zip(opened[:2], read[:2], strict=True):
        assert [before.read(number) for number in range(len(before))] == [after.read(n) for n in range(len(after))]
        assert before.label.tolist() == after.label.tolist()
        assert before.name(1) == after.name(1)
        assert [*before.files] == [*after.files]
    written = index.stat().st_mtime_ns
    assert imagenet.write_index(folder, tmp_path / "prepared") == index
    assert index.stat().st_mtime_ns == written
    images = sorted(path for path in (folder / "train").rglob("*") if path.is_file())
    if layout == "folders":
        shutil.copy(images[0], images[0].with_name("another.jpg"))
    else:
        shutil.copy(images[0], images[0].with_name(f"z-{images[0].name}"))
    changed = imagenet.write_index(folder, tmp_path / "prepared")
    assert changed != index
    assert len(imagenet.read_index(changed, folder)[0]) > len(opened[0])


def test_damaged_index_is_named(folder):
    index = imagenet.write_index(folder, folder / "prepared")
    index.write_bytes(index.read_bytes()[:50])
    assert_rejected(imagenet.read_index, index, folder, message=rf"^{index} cannot be read .*: remove it")
