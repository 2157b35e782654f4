"""ImageNet's class folders out of a user's own tars: one of a tar a class, one of all validation images."""

import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...runner.core.errors import DataError
from ..download import archives
from ..download.archives import Slice, Step
from .dataset_builder import Part, Workshop

_CLASS = re.compile(r"n\d{8}")
_DEVKIT = {"meta.mat", "ILSVRC2012_validation_ground_truth.txt"}


def convert(shop: Workshop, raw: Sequence[Path | None], *, classes: int, train: int, val: int) -> None:
    """Makes train/<class>/ and val/<class>/ of the training tar, the validation tar, and the devkit or a list.

    The list has a line an image of the validation set: its class, in order of the images, or its file name and class.
    Raises `DataError` where there are not as many classes and images as there should be.
    """
    train_tar, val_tar, devkit, listed = raw
    assert train_tar is not None
    assert val_tar is not None  # only the other two are optional
    found = [(Path(name).stem, start, size) for name, start, size in archives.index(train_tar)]
    if len(found) != classes or not all(_CLASS.fullmatch(name) for name, _, _ in found):
        raise DataError(f"{train_tar} does not hold a tar for each of {classes} classes: it is another edition.")
    label = _labels(listed) if listed else _labels_of_devkit(devkit)
    if unknown := set(label.values()) - {name for name, _, _ in found}:
        raise DataError(f"{listed or devkit} names the class {min(unknown)}, which {train_tar} does not hold.")

    def one_class(name: str, start: int, size: int, folder: Path, step: Step) -> None:
        with Slice(train_tar, start, size) as part:
            archives.unpack_tar(part, train_tar, size, folder, lambda member: f"{name}/{Path(member).name}", step)

    def validation(folder: Path, step: Step) -> None:
        archives.unpack(val_tar, folder, where, step)

    def where(member: str) -> str:
        name = Path(member).name
        if name not in label:
            raise DataError(f"{listed or devkit} does not give the class of {name}: take one of all validation images.")
        return f"val/{label[name]}/{name}"

    parts = [Part("validation", validation)]
    shop.make(parts + [Part(found_class[0], partial(one_class, *found_class), "train") for found_class in found])
    for side, wanted in (("train", train), ("val", val)):
        there = sum(entry.path.startswith(f"{side}/") for entry in shop.entries())
        if there != wanted:
            raise DataError(f"ImageNet's {side} tar holds {there:,} images, not {wanted:,}: it is another edition.")


def _labels(path: Path) -> dict[str, str]:
    """Class by file name of the validation images, from a user's list."""
    label = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        words = re.split(r"[\s,]+", line.strip())
        if not _CLASS.fullmatch(words[-1]):
            raise DataError(f"{path} line {number} does not end with a class like n01440764: mend the line.")
        label[words[0] if len(words) > 1 else _name(number)] = words[-1]
    return label


def _labels_of_devkit(devkit: Path | None) -> dict[str, str]:
    """The same from the development kit: numbers of classes in order of the images, and a table of those numbers."""
    if devkit is None:
        raise DataError(
            "The classes of ImageNet's validation images are missing: put ILSVRC2012_devkit_t12.tar.gz, or a list "
            "ILSVRC2012_validation_labels.txt, beside the tars."
        )
    from scipy.io import loadmat

    def where(member: str) -> str | None:
        name = Path(member).name
        return name if name in _DEVKIT else None

    with tempfile.TemporaryDirectory() as folder:
        archives.unpack(devkit, Path(folder), where)
        try:
            table = loadmat(Path(folder, "meta.mat"), squeeze_me=True)["synsets"]
            name = dict(zip(table["ILSVRC2012_ID"].tolist(), table["WNID"].tolist(), strict=True))
            numbers = Path(folder, "ILSVRC2012_validation_ground_truth.txt").read_text().split()
            return {_name(index): name[int(number)] for index, number in enumerate(numbers, start=1)}
        except Exception as error:  # what is no such table fails in many ways
            raise DataError(f"{devkit} is no development kit of ImageNet ({error}): fetch it again.") from error


def _name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"
