"""Shards of images: WebDataset tars and ImageNet's TFRecords, as places of whole encoded images in files."""

import io
import mmap
import struct
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...runner.core.errors import DataError

_TAR_END = 1024  # zero bytes that close an archive; more may fill it up to a whole record
_HEADER, _FOOTER = 12, 4  # of a TFRecord: length (uint64) and its checksum before the data, the data's checksum after


class Place(NamedTuple):
    """Where in a shard an encoded image lies, in bytes, and its class as the shard has it."""

    offset: int
    length: int
    label: int


def read_tar(path: Path) -> list[Place]:
    """Images (<key>.jpg, .jpeg, .png) of an uncompressed WebDataset tar, each beside its <key>.cls (a number).

    Raises `DataError` where the shard is cut short or damaged, or has a member of a pair twice or not at all.
    """
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    twice: list[str] = []
    try:
        with tarfile.open(path, "r:") as tar:
            end = 0
            for member in tar:
                key, _, suffix = member.name.partition(".") if "/" not in member.name else _split(member.name)
                end = member.offset_data + -(-member.size // 512) * 512
                if suffix.lower() in ("jpg", "jpeg", "png"):
                    twice += [key] if key in images else []
                    images[key] = (member.offset_data, member.size)
                elif suffix == "cls":
                    twice += [key] if key in labels else []
                    file = tar.extractfile(member)
                    labels[key] = int(file.read()) if file else -1
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _cut(path) from error
    except ValueError as error:
        raise DataError(f"{path} holds a .cls that is no whole number: write the class as a number there.") from error
    with open(path, "rb") as shard:
        shard.seek(end)
        rest = shard.read(_TAR_END + tarfile.RECORDSIZE)
    if len(rest) < _TAR_END or any(rest):  # tarfile takes a header that it cannot read for the end
        raise _cut(path)
    if twice:
        raise DataError(f"{path} holds {twice[0]} twice: give each image a name of its own.")
    if lonely := sorted(images.keys() ^ labels.keys()):
        raise DataError(f"{path} lacks the image or the .cls of {lonely[0]}: each image needs a class beside it.")
    if not images:
        raise DataError(f"{path} holds no image: remove the shard or fill it.")
    return [Place(*where, labels[key]) for key, where in images.items()]


def read_tfrecord(path: Path) -> list[Place]:
    """Images of a TFRecord shard of `tf.train.Example`s with `image/encoded` and `image/class/label`.

    Only the records' frames are read, not the images: the checksums of their lengths are checked, those of the images
    are not. Raises `DataError` where the shard is cut short or damaged or holds something else.
    """
    size = path.stat().st_size
    if not size:
        raise _cut(path)
    places: list[Place] = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < size:
            if at + _HEADER > size:
                raise _cut(path)
            (length,) = struct.unpack_from("<Q", data, at)
            sound = data[at + 8 : at + _HEADER] == _checksum(data[at : at + 8])
            start = at + _HEADER
            at = start + length + _FOOTER
            if not sound or at > size:
                raise _cut(path)
            try:
                places.append(_example(data, start, start + length))
            except (ValueError, IndexError, StopIteration) as error:
                raise DataError(
                    f"{path} holds a record without image/encoded and image/class/label: write it as ImageNet's are."
                ) from error
    return places


def write_tar(path: Path, images: Iterable[tuple[bytes, int]]) -> None:
    """Writes encoded images with their classes as a WebDataset shard."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, (data, label) in enumerate(images):
            for suffix, content in (("jpg", data), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_tfrecord(path: Path, images: Iterable[tuple[bytes, int]]) -> None:
    """Writes encoded images with their classes as a TFRecord shard of Examples, checksums included."""
    with open(path, "wb") as file:
        for data, label in images:
            encoded = _field(1, _field(1, data))
            number = _field(3, _field(1, _varint(label)))
            entries = ((b"image/encoded", encoded), (b"image/class/label", number))
            features = b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in entries)
            record = _field(1, features)
            length = struct.pack("<Q", len(record))
            file.write(length + _checksum(length) + record + _checksum(record))


def _split(name: str) -> tuple[str, str, str]:
    """WebDataset's key and suffix: the name up to the first dot of its last part, and what follows."""
    folder, _, last = name.rpartition("/")
    key, dot, suffix = last.partition(".")
    return f"{folder}/{key}", dot, suffix


def _cut(path: Path) -> DataError:
    return DataError(f"{path} is cut short or damaged: fetch or write the shard again.")


def _example(data: mmap.mmap, start: int, end: int) -> Place:
    """Finds image and class in a serialised Example without copying it (protocol buffers' wire format)."""
    where, label = None, None
    for features in _messages(data, start, end, 1):
        for entry in _messages(data, *features, 1):
            name = next(_messages(data, *entry, 1))
            value = next(_messages(data, *entry, 2))
            match data[slice(*name)]:
                case b"image/encoded":
                    where = next(_messages(data, *next(_messages(data, *value, 1)), 1))
                case b"image/class/label":
                    numbers = next(_messages(data, *value, 3))
                    label = _number(data, *numbers)
    if where is None or label is None:
        raise ValueError
    return Place(where[0], where[1] - where[0], label)


def _messages(data: mmap.mmap, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Start and end of every length-delimited field `wanted` between `start` and `end`; others are passed over."""
    at = start
    while at < end:
        tag, at = _read_varint(data, at)
        if tag & 7 == 0:
            _, at = _read_varint(data, at)
            continue
        if tag & 7 != 2:
            at += {1: 8, 5: 4}[tag & 7] if tag & 7 in (1, 5) else end
            continue
        length, at = _read_varint(data, at)
        if at + length > end:
            raise ValueError
        if tag >> 3 == wanted:
            yield at, at + length
        at += length


def _number(data: mmap.mmap, start: int, end: int) -> int:
    """The first number of an Int64List, packed or not."""
    tag, at = _read_varint(data, start)
    if tag & 7 == 2:
        _, at = _read_varint(data, at)
    if at >= end:
        raise ValueError
    return _read_varint(data, at)[0]


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _crc_table() -> list[int]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.tolist()


_CRC = _crc_table()


def _checksum(data: bytes) -> bytes:
    """TFRecord's masked CRC-32C, little endian."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
