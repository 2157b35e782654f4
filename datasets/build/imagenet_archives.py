"""Build of ImageNet's class folders from the official archives, which users must provide themselves."""

import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...runner.core.errors import DataError
from ..download import archives
from ..download.archives import FileSlice
from ..download.worker_pool import ByteCounter
from .dataset_builder import BuildStep, DatasetBuilder

_WORDNET_ID = re.compile(r"n\d{8}")
_DEVKIT_FILES = {"meta.mat", "ILSVRC2012_validation_ground_truth.txt"}


def convert(
    builder: DatasetBuilder, raw: Sequence[Path | None], *, num_classes: int, num_train: int, num_val: int
) -> None:
    """Build train/<class>/ and val/<class>/ from the training tar, the validation tar, and the devkit or a list.

    `raw` holds these four paths; one of the last two may be None. The list has a line for each validation image:
    its class, in order of the images, or its file name and class. Raises `DataError` if the number of classes or images
    is not as given.
    """
    train_tar, val_tar, devkit, label_list = raw
    assert train_tar is not None
    assert val_tar is not None  # only the other two are optional
    class_tars = [(Path(name).stem, start, size) for name, start, size in archives.list_tar(train_tar)]
    if len(class_tars) != num_classes or not all(_WORDNET_ID.fullmatch(name) for name, _, _ in class_tars):
        raise DataError(f"{train_tar} does not contain a tar for each of {num_classes} classes: it is another version.")
    labels = _read_label_list(label_list) if label_list else _read_devkit(devkit)
    if unknown := set(labels.values()) - {name for name, _, _ in class_tars}:
        raise DataError(f"{label_list or devkit} names the class {min(unknown)}, which {train_tar} does not contain.")

    def unpack_class(name: str, start: int, size: int, folder: Path, count: ByteCounter) -> None:
        with FileSlice(train_tar, start, size) as class_tar:
            archives.unpack_tar(class_tar, train_tar, size, folder, lambda member: f"{name}/{Path(member).name}", count)

    def unpack_validation(folder: Path, count: ByteCounter) -> None:
        archives.unpack(val_tar, folder, validation_path, count)

    def validation_path(member: str) -> str:
        name = Path(member).name
        if name not in labels:
            raise DataError(f"{label_list or devkit} has no class for {name}: use one with all validation images.")
        return f"val/{labels[name]}/{name}"

    steps = [BuildStep("validation", unpack_validation)]
    builder.run(steps + [BuildStep(entry[0], partial(unpack_class, *entry), "train") for entry in class_tars])
    for split, expected in (("train", num_train), ("val", num_val)):
        num_images = sum(entry.path.startswith(f"{split}/") for entry in builder.entries())
        if num_images != expected:
            raise DataError(
                f"ImageNet's {split} tar contains {num_images:,} images, not {expected:,}: it is another version."
            )


def _read_label_list(path: Path) -> dict[str, str]:
    """Return the class of each validation image by file name, from the user's list."""
    labels = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        fields = re.split(r"[\s,]+", line.strip())
        if not _WORDNET_ID.fullmatch(fields[-1]):
            raise DataError(f"{path} line {number} does not end with a class such as n01440764: correct the line.")
        labels[fields[0] if len(fields) > 1 else _validation_name(number)] = fields[-1]
    return labels


def _read_devkit(devkit: Path | None) -> dict[str, str]:
    """Return the class of each validation image by file name, from the devkit's class numbers and their table."""
    if devkit is None:
        raise DataError(
            "The classes of ImageNet's validation images are missing: put ILSVRC2012_devkit_t12.tar.gz, or a list "
            "ILSVRC2012_validation_labels.txt, beside the tars."
        )
    from scipy.io import loadmat

    def select(member: str) -> str | None:
        name = Path(member).name
        return name if name in _DEVKIT_FILES else None

    with tempfile.TemporaryDirectory() as folder:
        archives.unpack(devkit, Path(folder), select)
        try:
            synsets = loadmat(Path(folder, "meta.mat"), squeeze_me=True)["synsets"]
            wordnet_ids = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
            numbers = Path(folder, "ILSVRC2012_validation_ground_truth.txt").read_text(encoding="utf-8").split()
            return {_validation_name(index): wordnet_ids[int(number)] for index, number in enumerate(numbers, start=1)}
        except Exception as error:  # scipy raises many kinds of errors for an invalid file
            raise DataError(f"{devkit} is not ImageNet's development kit ({error}): fetch it again.") from error


def _validation_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"
