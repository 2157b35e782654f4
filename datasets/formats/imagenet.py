"""Labelled images in ImageNet's forms: class folders, TFRecord shards, WebDataset shards; found by what lies there."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError
from . import shards

_SUFFIXES = {".jpg", ".jpeg", ".png"}
_VALIDATION = ("val", "validation")  # the reference's script calls its shards and folder "validation"


@dataclass(frozen=True)
class ImageSet:
    """Encoded images as parts of files: image i is `length[i]` bytes at `offset[i]` of `files[file[i]]`.

    A length of -1 is the whole file. Arrays are int64 [N]; `label` counts classes from 0.
    """

    files: list[Path]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label)

    def name(self, index: int) -> str:
        """What to call image `index` in a message."""
        path = self.files[self.file[index]]
        return str(path) if self.length[index] < 0 else f"the image at byte {self.offset[index]} of {path}"

    def read(self, index: int) -> bytes:
        """The encoded image; raises `DataError` where it is gone."""
        try:
            with open(self.files[self.file[index]], "rb") as file:
                file.seek(int(self.offset[index]))
                return file.read(int(self.length[index]))
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read ({error.strerror}): put it back.") from error


def open_sets(folder: Path) -> tuple[ImageSet, ImageSet, int, str]:
    """Training set, validation set, number of classes, and the form: folders, tfrecord or webdataset.

    `folder` holds train/ and val/ (or validation/) with class folders or shards in them. Classes are numbered in order
    of their folders' names, or of the shards' own numbers. Raises `DataError` naming what is missing, empty, cut short
    or on one side only.
    """
    train, val = folder / "train", next((folder / name for name in _VALIDATION if (folder / name).is_dir()), None)
    if not train.is_dir() or val is None:
        missing = train if not train.is_dir() else folder / "val"
        raise DataError(
            f"{missing} is missing: put class folders or shards there (timetrial data fetch may) or set data_dir."
        )
    forms = {"webdataset": (".tar", shards.read_tar), "tfrecord": ("", shards.read_tfrecord)}
    form = _form(train)
    if form == "folders":
        sets = [_folders(split) for split in (train, val)]
    else:
        suffix, read = forms[form]
        sets = [_shards([path for path in _files(split) if path.name.endswith(suffix)], read) for split in (train, val)]
    names = [sorted(set(labels)) for _, labels in sets]
    for lacking, other, place in ((names[1], names[0], val), (names[0], names[1], train)):
        if gone := sorted(set(other) - set(lacking)):
            listed = ", ".join(map(str, gone[:3]))
            raise DataError(f"{place} lacks the class {listed}: both sides must hold the same classes.")
    number = {name: index for index, name in enumerate(names[0])}
    train_set, val_set = (_numbered(found, labels, number) for found, labels in sets)
    return train_set, val_set, len(number), form


_Class = str | int  # a folder's name, or the number in a shard
_Found = tuple[list[Path], list[tuple[int, int, int]]]  # files, and (file, offset, length) of each image


def _form(folder: Path) -> str:
    """What kind of thing lies in `folder`."""
    with os.scandir(folder) as entries:  # closed here: `any` stops at the first folder
        if any(entry.is_dir() for entry in entries if not entry.name.startswith(".")):
            return "folders"
    files = _files(folder)
    if not files:
        raise DataError(f"{folder} is empty: put one folder of images a class there, or shards.")
    return "webdataset" if any(path.suffix == ".tar" for path in files) else "tfrecord"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _folders(root: Path) -> tuple[_Found, list[_Class]]:
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    files: list[Path] = []
    labels: list[_Class] = []
    for name in classes:
        inside = sorted(entry for entry in os.listdir(root / name) if Path(entry).suffix.lower() in _SUFFIXES)
        if not inside:
            raise DataError(f"{root / name} holds no image: remove the folder or fill it.")
        files += [root / name / entry for entry in inside]
        labels += [name] * len(inside)
    return (files, [(index, 0, -1) for index in range(len(files))]), labels


def _shards(files: list[Path], read: Callable[[Path], list[shards.Place]]) -> tuple[_Found, list[_Class]]:
    where: list[tuple[int, int, int]] = []
    labels: list[_Class] = []
    for number, path in enumerate(files):
        for place in read(path):
            where.append((number, place.offset, place.length))
            labels.append(place.label)
    return (files, where), labels


def _numbered(found: _Found, labels: list[_Class], number: dict[_Class, int]) -> ImageSet:
    file, offset, length = np.array(found[1], dtype=np.int64).T
    return ImageSet(found[0], file, offset, length, np.array([number[label] for label in labels], dtype=np.int64))
