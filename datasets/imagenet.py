"""Image folders in ImageNet's layout: one folder a class, any file name, JPEG (or PNG) inside."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from timetrial.runner.errors import DataError

_SUFFIXES = {".jpg", ".jpeg", ".png"}


@dataclass(frozen=True)
class ImageSet:
    """`files` below `root` in order of their names, and the class of each (int64 [N])."""

    root: Path
    files: list[str]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> Path:
        """Where image `index` lies."""
        return self.root / self.files[index]


def read_folders(train: Path, val: Path) -> tuple[ImageSet, ImageSet, list[str]]:
    """Training and validation images and their classes, in order of the training folders' names.

    Raises `DataError` for a missing folder, a class without images, and classes that only one side has.
    """
    classes, its = _classes(train), _classes(val)
    for missing, place in ((set(classes) - set(its), val), (set(its) - set(classes), train)):
        if missing:
            names = ", ".join(sorted(missing)[:3])
            raise DataError(f"{place} lacks the class {names}: both sides must hold the same class folders.")
    return _image_set(train, classes), _image_set(val, classes), classes


def read_image(path: Path) -> Tensor:
    """The image as uint8 [3, height, width] RGB, whatever its colours and its file name say.

    Raises `DataError` with the file's name where it is cut short or no image.
    """
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be decoded: it is cut short or no image; replace it or remove it.") from error
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def _classes(folder: Path) -> list[str]:
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} is missing: put one folder of images a class there, or set data_dir.") from error
    if not found:
        raise DataError(f"{folder} holds no class folder: one folder of images a class must lie there.")
    return found


def _image_set(root: Path, classes: list[str]) -> ImageSet:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        inside = sorted(entry for entry in os.listdir(root / name) if Path(entry).suffix.lower() in _SUFFIXES)
        if not inside:
            raise DataError(f"{root / name} holds no image: remove the folder or fill it.")
        files += [f"{name}/{entry}" for entry in inside]
        labels += [label] * len(inside)
    return ImageSet(root, files, np.array(labels, dtype=np.int64))
