"""CIFAR-10's binary format, written byte by byte."""

import numpy as np
import pytest

from timetrial.datasets.formats import cifar
from timetrial.runner.core.errors import DataError, Exit


def record(label, red, green, blue):
    """Return a record; each plane is a function of row and column."""
    planes = (bytes(plane(row, column) for row in range(32) for column in range(32)) for plane in (red, green, blue))
    return bytes([label]) + b"".join(planes)


def made(label):
    return record(label, lambda row, _: row, lambda _, column: column + 100, lambda *_: 250 + label % 5)


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate((*cifar.TRAIN_FILES, *cifar.VAL_FILES)):
        (tmp_path / name).write_bytes(made(number) + made(9))
    return tmp_path


def test_reads_pixels_and_classes_in_file_order(folder):
    assert (cifar.count(folder, cifar.TRAIN_FILES), cifar.count(folder, cifar.VAL_FILES)) == (10, 2)
    pixels, labels = cifar.split(cifar.read(folder, cifar.TRAIN_FILES))
    assert labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert (pixels.shape, pixels.dtype, labels.dtype) == ((10, 3, 32, 32), np.uint8, np.uint8)
    assert pixels[0, :, 7, 20].tolist() == [7, 120, 250]
    assert pixels[4, :, 31, 0].tolist() == [31, 100, 252]
    assert cifar.split(cifar.read(folder, cifar.VAL_FILES))[1].tolist() == [5, 9]


def test_writes_the_official_format(folder):
    pixels, labels = cifar.split(cifar.read(folder, cifar.VAL_FILES))
    cifar.write(folder / "again.bin", pixels, labels)
    assert (folder / "again.bin").read_bytes() == (folder / cifar.VAL_FILES[0]).read_bytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"data_batch_3\.bin is truncated: 6145 bytes"),
        (lambda path: path.write_bytes(b""), r"data_batch_3\.bin is truncated"),
        (lambda path: path.unlink(), r"data_batch_3\.bin is missing"),
    ],
)
@pytest.mark.parametrize("function", [cifar.count, cifar.read])
def test_names_truncated_and_missing_files(folder, function, damage, message):
    damage(folder / "data_batch_3.bin")
    with pytest.raises(DataError, match=message) as caught:
        function(folder, cifar.TRAIN_FILES)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)


def test_rejects_class_beyond_nine(folder):
    (folder / "data_batch_3.bin").write_bytes(made(10))
    with pytest.raises(DataError, match=r"data_batch_3\.bin contains a class beyond 9"):
        cifar.read(folder, cifar.TRAIN_FILES)
