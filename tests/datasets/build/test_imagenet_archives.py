"""Small versions of ImageNet's archives: a tar of tars, a tar of validation images, and the devkit or a list."""

import io
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from timetrial.datasets.build import imagenet_archives
from timetrial.datasets.build.dataset_builder import DatasetBuilder
from timetrial.datasets.download.worker_pool import WorkerPool
from timetrial.datasets.formats import imagenet
from timetrial.runner.core.errors import DataError
from timetrial.runner.core.progress import no_progress

CLASSES = ["n01440764", "n02102040", "n03000684"]
LABELS = [2, 0, 1, 1, 0]  # of the validation images, as numbers of classes
COUNTS = {"num_classes": 3, "num_train": 9, "num_val": 5}


def tarred(files, mode="w"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def image(seed):
    out = io.BytesIO()
    pixels = np.frombuffer(random.Random(seed).randbytes(12 * 10 * 3), np.uint8).reshape(12, 10, 3)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


TRAIN = {name: {f"{name}_{number}.JPEG": image(f"{name}{number}") for number in range(3)} for name in CLASSES}
VAL = {f"ILSVRC2012_val_{number:08d}.JPEG": image(number) for number in range(1, 6)}


@pytest.fixture
def raw(tmp_path):
    """Return the paths of the four files; users write the last one."""
    inner = {f"{name}.tar": tarred(files) for name, files in TRAIN.items()}
    (tmp_path / "train.tar").write_bytes(tarred(inner))
    (tmp_path / "val.tar").write_bytes(tarred(VAL))
    numbers = [30, 10, 20, 999]  # the devkit has its own order, and also lists groups of classes
    names = [*CLASSES, "n99999999"]
    kinds = [("ILSVRC2012_ID", "f8"), ("WNID", "O"), ("words", "O"), ("num_children", "f8")]
    table = np.array([(number, name, "", 0) for number, name in zip(numbers, names, strict=True)], dtype=kinds)
    out = io.BytesIO()
    savemat(out, {"synsets": table})
    truth = "".join(f"{numbers[label]}\n" for label in LABELS).encode()
    kit = {"kit/data/meta.mat": out.getvalue(), "kit/data/ILSVRC2012_validation_ground_truth.txt": truth, "kit/x": b"x"}
    (tmp_path / "devkit.tar.gz").write_bytes(tarred(kit, "w:gz"))
    (tmp_path / "labels.txt").write_text("".join(f"{CLASSES[label]}\n" for label in LABELS))
    return [tmp_path / name for name in ("train.tar", "val.tar", "devkit.tar.gz", "labels.txt")]


@pytest.fixture
def make(tmp_path):
    def convert(raw, **changes):
        byte_counts = []
        builder = DatasetBuilder(tmp_path / "work", WorkerPool(2, no_progress), byte_counts.append)
        imagenet_archives.convert(builder, raw, **COUNTS | changes)
        builder.publish(tmp_path / "imagenet", {}, {"train": None, "val": None})
        return tmp_path / "imagenet", sum(byte_counts)

    return convert


def check(folder):
    train, val, classes, form = imagenet.open_dataset(folder)
    assert (classes, form) == (3, "folders")
    assert [train.read(index) for index in range(len(train))] == [
        data for name in CLASSES for data in TRAIN[name].values()
    ]
    assert train.label.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = {Path(val.files[val.file[index]]).name: (val.read(index), val.label[index]) for index in range(len(val))}
    assert found == {name: (data, label) for (name, data), label in zip(VAL.items(), LABELS, strict=True)}


def test_reads_classes_from_devkit(raw, make):
    folder, done = make([*raw[:3], None])
    check(folder)
    assert done >= sum(len(data) for files in [*TRAIN.values(), VAL] for data in files.values())


@pytest.mark.parametrize("form", ["{label}", "{name} {label}", "{name},{label}", "{name}\t012\t{label}"])
def test_reads_classes_from_list(raw, make, form):
    lines = [form.format(name=name, label=CLASSES[label]) for name, label in zip(VAL, LABELS, strict=True)]
    if "name" in form:
        lines.reverse()
    raw[3].write_text("\n".join(lines) + "\n")
    check(make([*raw[:2], None, raw[3]])[0])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"num_classes": 4}, r"train\.tar does not contain a tar for each of 4 classes: it is another version"),
        ({"num_train": 8}, "train tar contains 9 images, not 8"),
        ({"num_val": 6}, "val tar contains 5 images, not 6"),
    ],
)
def test_rejects_other_numbers_of_classes_and_images(raw, make, tmp_path, counts, message):
    with pytest.raises(DataError, match=message):
        make(raw, **counts)
    assert not (tmp_path / "imagenet").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01440764\nn02102040\n", r"labels\.txt has no class for ILSVRC2012_val_00000003\.JPEG"),
        ("n01440764\ntench\n", r"labels\.txt line 2 does not end with a class such as n01440764"),
        (
            "n01440764\n" * 4 + "n07777777\n",
            r"labels\.txt names the class n07777777, which .*train\.tar does not contain",
        ),
    ],
)
def test_rejects_invalid_list(raw, make, text, message):
    raw[3].write_text(text)
    with pytest.raises(DataError, match=message):
        make(raw)


def test_rejects_missing_or_damaged_classes(raw, make):
    with pytest.raises(DataError, match=r"put ILSVRC2012_devkit_t12\.tar\.gz, or a list .* beside the tars"):
        make([*raw[:2], None, None])
    raw[2].write_bytes(tarred({"kit/data/meta.mat": b"no table"}, "w:gz"))
    with pytest.raises(DataError, match=r"devkit\.tar\.gz is not ImageNet's development kit"):
        make([*raw[:3], None])


def test_completed_steps_are_not_repeated_after_a_failure(raw, make, tmp_path):
    """At first the second class is damaged. The folder of the first class is then kept."""
    data = raw[0].read_bytes()
    bad = bytearray(data)
    place = data.index(b"n02102040_1.JPEG")
    bad[place] ^= 1
    raw[0].write_bytes(bad)
    with pytest.raises(DataError, match=r"train\.tar is damaged or not an archive"):
        make(raw)
    assert (tmp_path / "work/dataset/train/n01440764").is_dir() or (tmp_path / "work/dataset/val").is_dir()
    before = {path: path.stat().st_ino for path in (tmp_path / "work/dataset").rglob("*.JPEG")}
    raw[0].write_bytes(data)
    folder, _ = make(raw)
    check(folder)
    after = {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*.JPEG")}
    assert before
    for path, inode in before.items():
        assert after[str(path.relative_to(tmp_path / "work/dataset"))] == inode
