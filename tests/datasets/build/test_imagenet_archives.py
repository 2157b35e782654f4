"""ImageNet's own tars, in small: a tar of tars, a tar of validation images, and the devkit or a list of classes."""

import io
import random
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from timetrial.datasets.build import imagenet_archives
from timetrial.datasets.build.dataset_builder import Workshop
from timetrial.datasets.download.worker_pool import Crew
from timetrial.datasets.formats import imagenet
from timetrial.runner.core.errors import DataError

CLASSES = ["n01440764", "n02102040", "n03000684"]
LABELS = [2, 0, 1, 1, 0]  # of the validation images, as numbers of classes
COUNTS = {"classes": 3, "train": 9, "val": 5}


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
    """The four files, the last of which a user makes."""
    inner = {f"{name}.tar": tarred(files) for name, files in TRAIN.items()}
    (tmp_path / "train.tar").write_bytes(tarred(inner))
    (tmp_path / "val.tar").write_bytes(tarred(VAL))
    numbers = [30, 10, 20, 999]  # the devkit has its own order, and groups of classes too
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
        steps = []
        shop = Workshop(tmp_path / "work", Crew(2, lambda *words: None), steps.append)
        imagenet_archives.convert(shop, raw, **COUNTS | changes)
        shop.finish(tmp_path / "imagenet", {}, {"train": None, "val": None})
        return tmp_path / "imagenet", sum(steps)

    return convert


def check(folder):
    train, val, classes, form = imagenet.open_sets(folder)
    assert (classes, form) == (3, "folders")
    assert [train.read(index) for index in range(len(train))] == [
        data for name in CLASSES for data in TRAIN[name].values()
    ]
    assert train.label.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = {val.files[val.file[index]].name: (val.read(index), val.label[index]) for index in range(len(val))}
    assert found == {name: (data, label) for (name, data), label in zip(VAL.items(), LABELS, strict=True)}


def test_the_devkit_says_the_classes(raw, make):
    folder, done = make([*raw[:3], None])
    check(folder)
    assert done >= sum(len(data) for files in [*TRAIN.values(), VAL] for data in files.values())


@pytest.mark.parametrize("form", ["{label}", "{name} {label}", "{name},{label}", "{name}\t012\t{label}"])
def test_so_does_a_list(raw, make, form):
    lines = [form.format(name=name, label=CLASSES[label]) for name, label in zip(VAL, LABELS, strict=True)]
    if "name" in form:
        lines.reverse()
    raw[3].write_text("\n".join(lines) + "\n")
    check(make([*raw[:2], None, raw[3]])[0])


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"classes": 4}, r"train\.tar does not hold a tar for each of 4 classes: it is another edition"),
        ({"train": 8}, "train tar holds 9 images, not 8"),
        ({"val": 6}, "val tar holds 5 images, not 6"),
    ],
)
def test_other_counts_are_another_edition(raw, make, tmp_path, counts, words):
    with pytest.raises(DataError, match=words):
        make(raw, **counts)
    assert not (tmp_path / "imagenet").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n01440764\nn02102040\n", r"labels\.txt does not give the class of ILSVRC2012_val_00000003\.JPEG"),
        ("n01440764\ntench\n", r"labels\.txt line 2 does not end with a class like n01440764"),
        ("n01440764\n" * 4 + "n07777777\n", r"labels\.txt names the class n07777777, which .*train\.tar does not hold"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(raw, make, text, words):
    raw[3].write_text(text)
    with pytest.raises(DataError, match=words):
        make(raw)


def test_without_classes_there_is_nothing_to_validate_with(raw, make):
    with pytest.raises(DataError, match=r"put ILSVRC2012_devkit_t12\.tar\.gz, or a list .* beside the tars"):
        make([*raw[:2], None, None])
    raw[2].write_bytes(tarred({"kit/data/meta.mat": b"no table"}, "w:gz"))
    with pytest.raises(DataError, match=r"devkit\.tar\.gz is no development kit of ImageNet"):
        make([*raw[:3], None])


def test_what_was_unpacked_before_a_kill_is_not_unpacked_again(raw, make, tmp_path):
    """The second class is damaged at first: the first one's folder then stays."""
    data = raw[0].read_bytes()
    bad = bytearray(data)
    place = data.index(b"n02102040_1.JPEG")
    bad[place] ^= 1
    raw[0].write_bytes(bad)
    with pytest.raises(DataError, match=r"train\.tar is damaged or no archive"):
        make(raw)
    assert (tmp_path / "work/whole/train/n01440764").is_dir() or (tmp_path / "work/whole/val").is_dir()
    before = {path: path.stat().st_ino for path in (tmp_path / "work/whole").rglob("*.JPEG")}
    raw[0].write_bytes(data)
    folder, _ = make(raw)
    check(folder)
    after = {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*.JPEG")}
    assert before
    for path, inode in before.items():
        assert after[str(path.relative_to(tmp_path / "work/whole"))] == inode
