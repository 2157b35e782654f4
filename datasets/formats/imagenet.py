"""Labeled images in the layouts of ImageNet, which are detected: class folders, TFRecord or WebDataset shards."""

import contextlib
import hashlib
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from ...runner.core.found_files import open_regular
from ..registry.missing import missing_data
from . import jpeg, shards

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"}
_VALIDATION_NAMES = ("val", "validation", "valid", "test")  # MLPerf's reference script writes "validation"
_VALIDATION_LABELS = "val_annotations.txt"  # of Tiny ImageNet: a name and its class on each line
_SAMPLED_IMAGES = 200
_ARRAYS = ("file", "offset", "length", "label")
_INDEX_VERSION = 2  # increase it to discard older indexes


@dataclass(frozen=True)
class ImageSet:
    """Encoded images in files: image i is the `length[i]` bytes at `offset[i]` of `files[file[i]]`.

    A length of -1 means the whole file. Arrays are int64 [N]; `label` numbers classes from 0.
    """

    files: Sequence[str]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label)

    def name(self, index: int) -> str:
        """Return the name of image `index` in messages."""
        path = self.files[self.file[index]]
        return path if self.length[index] < 0 else f"the image at byte {self.offset[index]} of {path}"

    def read(self, index: int) -> bytes:
        """Return the encoded image; raises `DataError` if it cannot be read."""
        try:
            with open_regular(Path(self.files[self.file[index]])) as file:
                file.seek(int(self.offset[index]))
                return file.read(int(self.length[index]))
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read ({error.strerror}): put it back.") from error

    def sample(self) -> range:
        """Return the indices of up to about 200 images, evenly spaced."""
        return range(0, len(self), max(1, len(self) // _SAMPLED_IMAGES))

    def find_problem(self, index: int) -> str | None:
        """Return why image `index` cannot be decoded, or None."""
        try:
            jpeg.decode(self.read(index), self.name(index))
        except DataError as error:
            return str(error)
        return None


class _IndexedFiles(Sequence[str]):
    """Paths whose names below `folder` stand in an index, one on a line: a million strings would take half a second."""

    def __init__(self, folder: Path, lines: NDArray[np.uint8]) -> None:
        self._folder, self._lines = folder, lines
        self._ends = np.append(np.flatnonzero(lines == ord("\n")), len(lines))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: Any) -> Any:
        """Return the path of file `number`; slices are not supported."""
        first = self._ends[number - 1] + 1 if number else 0
        return f"{self._folder}/{os.fsdecode(self._lines[first : self._ends[number]].tobytes())}"


def open_dataset(folder: Path) -> tuple[ImageSet, ImageSet, int, str]:
    """Return training set, validation set, number of classes, and layout: folders, tfrecord or webdataset.

    `folder` contains train/ and val/ (or validation/, valid/, test/) with class folders or shards. Images of a class
    may lie in one more folder, and those of val/ together beside Tiny ImageNet's val_annotations.txt. Classes are
    numbered in order of their folders' names or of their labels in the shards. Raises `DataError` naming what is
    missing, empty, truncated or in one split only.
    """
    train, val = _split_folders(folder)
    readers = {"webdataset": (".tar", shards.read_tar), "tfrecord": ("", shards.read_tfrecord)}
    layout = _detect_layout(train)
    if layout == "folders":
        splits = [_read_folders(split) for split in (train, val)]
    else:
        suffix, read = readers[layout]
        splits = [
            _read_shards([path for path in _files(split) if path.name.endswith(suffix)], read) for split in (train, val)
        ]
    names = [sorted(set(labels)) for _, labels in splits]
    for names_here, names_there, split in ((names[1], names[0], val), (names[0], names[1], train)):
        if missing_names := sorted(set(names_there) - set(names_here)):
            listed = ", ".join(map(str, missing_names[:3]))
            raise DataError(f"{split} lacks the class {listed}: both splits must contain the same classes.")
    class_index = {name: index for index, name in enumerate(names[0])}
    train_set, val_set = (_number_classes(files, labels, class_index) for files, labels in splits)
    return train_set, val_set, len(class_index), layout


def find_oddities(folder: Path, train: ImageSet) -> list[str]:
    """Return a sentence for files of `folder` that are not read, and for training images that are converted.

    Of the images, the headers of a sample are read.
    """
    others = Counter[str]()
    for split in _split_folders(folder):
        for path, _, names in os.walk(split, followlinks=True):
            listed = (name for name in names if path != str(split) and not name.startswith("."))
            others.update(os.path.splitext(name)[1].lower() or name for name in listed if not _is_image(name))
    notes = [f"{count:,} files with the suffix {suffix} are not read." for suffix, count in others.most_common(5)]
    sizes, depths = sample_headers(train)
    if deep := sum(depths):
        notes.append(f"{deep} of {len(sizes)} sampled images have more than 8 bits a pixel: they are scaled to 8.")
    return notes


def sample_headers(images: ImageSet) -> tuple[list[tuple[int, int]], list[bool]]:
    """Return width and height, and whether a pixel has more than 8 bits, of a sample of readable images in files."""
    sizes, depths = [], []
    for index in images.sample():
        if images.length[index] < 0:
            with contextlib.suppress(*jpeg.DECODING_ERRORS), Image.open(images.files[images.file[index]]) as image:
                sizes.append(image.size)
                depths.append(image.mode.startswith(jpeg.DEEP_MODES))
    return sizes, depths


def write_index(folder: Path, cache_dir: Path) -> Path:
    """Return the path of an .npz file in `cache_dir` with the two image sets of `folder`, for `read_index`.

    The file is written if there is none, or if files were added, removed or, as shards, changed since.
    """
    stamp = _stamp(folder) if folder.is_dir() else ""
    digest = hashlib.sha256(os.fsencode(f"{folder.absolute()}|{stamp}|{_INDEX_VERSION}")).hexdigest()[:16]
    index = cache_dir / f"{folder.name}-{digest}.npz"
    if index.exists():
        return index
    columns: dict[str, Any] = {}
    *sets, columns["num_classes"], columns["layout"] = open_dataset(folder)
    for split, images in zip(("train", "val"), sets, strict=True):
        columns |= {f"{split}_{name}": getattr(images, name) for name in _ARRAYS}
        names = "\n".join(os.path.relpath(path, folder) for path in images.files)
        columns[f"{split}_files"] = np.frombuffer(os.fsencode(names), np.uint8)
    columns["notes"] = np.array(find_oddities(folder, sets[0]), dtype=np.str_)
    with atomic_write(index) as temporary, open(temporary, "wb") as file:
        np.savez(file, **columns)
    return index


def read_index(index: Path, folder: Path) -> tuple[ImageSet, ImageSet, int, str]:
    """Return what `open_dataset` returned for `folder` when `index` was written; raises `DataError` if it is damaged.

    No file of `folder` is read.
    """
    try:
        with open(index, "rb") as opened, np.load(opened) as columns:
            train, val = (
                ImageSet(
                    _IndexedFiles(folder, columns[f"{split}_files"]), *(columns[f"{split}_{key}"] for key in _ARRAYS)
                )
                for split in ("train", "val")
            )
            return train, val, int(columns["num_classes"]), str(columns["layout"])
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{index} cannot be read ({error}): remove it, and it is created again.") from error


def read_notes(index: Path) -> list[str]:
    """Return what `find_oddities` found when `index` was written."""
    with open(index, "rb") as opened, np.load(opened) as columns:
        return [str(note) for note in columns["notes"]]


def _split_folders(folder: Path) -> tuple[Path, Path]:
    """Return the folders of the training and the validation set; raises `DataError` if one is missing."""
    train, val = folder / "train", next((folder / name for name in _VALIDATION_NAMES if (folder / name).is_dir()), None)
    if not train.is_dir() or val is None:
        missing = train if not train.is_dir() else folder / "val"
        raise missing_data(missing, "put class folders or shards there")
    return train, val


def _stamp(folder: Path) -> str:
    """Return names, sizes and times of change of the class folders or shards, without a look at single images."""
    entries = [entry for split in _split_folders(folder) for entry in os.scandir(split)]
    states = [(entry.path, entry.stat()) for entry in entries if not entry.name.startswith(".")]
    return repr(sorted((path, state.st_size, state.st_mtime_ns) for path, state in states))


_Class = str | int  # a folder's name, or the label in a shard
_Locations = tuple[list[str], list[tuple[int, int, int]]]  # files, and (file, offset, length) of each image


def _detect_layout(folder: Path) -> str:
    """Return the layout of the images in `folder`."""
    with os.scandir(folder) as entries:  # closes it, although `any` stops at the first folder
        if any(entry.is_dir() for entry in entries if not entry.name.startswith(".")):
            return "folders"
    files = _files(folder)
    if not files:
        raise DataError(f"{folder} is empty: put one folder of images per class there, or shards.")
    return "webdataset" if any(path.suffix == ".tar" for path in files) else "tfrecord"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _read_folders(root: Path) -> tuple[_Locations, list[_Class]]:
    files: list[str] = []
    labels: list[_Class] = []
    if (root / _VALIDATION_LABELS).is_file():
        files, labels = _read_labeled(root, root / _VALIDATION_LABELS)
    else:
        for name in _class_folders(root):
            names = _image_names(root / name)
            files += [f"{root}/{name}/{entry}" for entry in names]
            labels += [name] * len(names)
    return (files, [(index, 0, -1) for index in range(len(files))]), labels


def _class_folders(root: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names and _images_in(root):
        raise DataError(f"{root} holds images without class folders: move those of each class to a folder of its name.")
    return names


def _image_names(folder: Path) -> list[str]:
    """Return the names of the images of a class, or their paths in its only folder with images (Tiny ImageNet)."""
    if names := _images_in(folder):
        return names
    inner = {path.name: images for path in sorted(folder.iterdir()) if path.is_dir() and (images := _images_in(path))}
    if len(inner) != 1:
        raise DataError(f"{folder} contains no image: remove the folder or fill it.")
    return [f"{name}/{image}" for name, images in inner.items() for image in images]


def _images_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _is_image(name))


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")


def _read_labeled(root: Path, listing: Path) -> tuple[list[str], list[_Class]]:
    """Return the images that the lines of `listing` name, in `root` or its folder images/, and their classes."""
    folder = root / "images" if (root / "images").is_dir() else root
    present, files, labels = set(os.listdir(folder)), list[str](), list[_Class]()
    for number, line in enumerate(listing.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, *rest = line.split("\t")
        if not rest or name not in present:
            raise DataError(f"{listing} line {number} names no image in {folder} and its class: correct the line.")
        files.append(f"{folder}/{name}")
        labels.append(rest[0])
    return files, labels


def _read_shards(files: list[Path], read: Callable[[Path], list[shards.Location]]) -> tuple[_Locations, list[_Class]]:
    locations: list[tuple[int, int, int]] = []
    labels: list[_Class] = []
    for number, path in enumerate(files):
        for location in read(path):
            locations.append((number, location.offset, location.length))
            labels.append(location.label)
    return (list(map(str, files)), locations), labels


def _number_classes(locations: _Locations, labels: list[_Class], class_index: dict[_Class, int]) -> ImageSet:
    file, offset, length = np.array(locations[1], dtype=np.int64).T
    return ImageSet(
        locations[0], file, offset, length, np.array([class_index[label] for label in labels], dtype=np.int64)
    )
