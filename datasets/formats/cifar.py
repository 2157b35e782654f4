"""CIFAR-10's binary format: files of 3,073-byte records, a class and 3x32x32 pixels (Krizhevsky 2009)."""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError
from ..registry.missing import missing_data

IMAGE_SIZE, NUM_CLASSES = 32, 10
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
VAL_FILES = ("test_batch.bin",)
_RECORD_BYTES = 1 + 3 * IMAGE_SIZE * IMAGE_SIZE

ArrayT = TypeVar("ArrayT", bound=Any)


def count(folder: Path, names: tuple[str, ...]) -> int:
    """Return the number of images in the files `names` of `folder`; raises `DataError` for a truncated one."""
    total = 0
    for path in (folder / name for name in names):
        if not path.is_file():
            raise missing_data(path, "set data_dir")
        size = path.stat().st_size
        if not size or size % _RECORD_BYTES:
            raise DataError(f"{path} is truncated: {size} bytes are not a multiple of {_RECORD_BYTES}-byte records.")
        total += size // _RECORD_BYTES
    return total


def read(folder: Path, names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return the records of all images of the files, uint8 [N, 3073], for `split`.

    Raises as `count` does, and on a class beyond 9.
    """
    records = np.empty((count(folder, names), _RECORD_BYTES), np.uint8)
    start = 0
    for path in (folder / name for name in names):
        with open(path, "rb") as file:
            size = file.readinto(records[start:].data)
        own = records[start : start + size // _RECORD_BYTES]
        if own[:, 0].max(initial=0) >= NUM_CLASSES:
            raise DataError(f"{path} contains a class beyond {NUM_CLASSES - 1}: it is not CIFAR-10's binary version.")
        start += len(own)
    return records


def split(records: ArrayT) -> tuple[ArrayT, ArrayT]:
    """Return pixels uint8 [N, 3, 32, 32] and classes uint8 [N], views of an array or tensor of records."""
    return records[:, 1:].reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE), records[:, 0]


def write(path: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Write pixels, uint8 [N, 3, 32, 32], and their classes as one file of the binary format."""
    records = np.concatenate([labels.astype(np.uint8)[:, None], pixels.reshape(len(pixels), -1)], 1)
    records.tofile(path)
