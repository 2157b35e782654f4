"""Shards of encoded images: WebDataset tars and ImageNet's TFRecords, read as locations of images in files."""

import io
import mmap
import struct
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...runner.core.errors import DataError

_TAR_END_BYTES = 1024  # zero bytes at the end of an archive; padding to a whole record may follow
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # of a TFRecord: length (uint64) and its checksum; checksum of the data


class Location(NamedTuple):
    """Position of an encoded image in a shard, in bytes, and its label there."""

    offset: int
    length: int
    label: int


def read_tar(path: Path) -> list[Location]:
    """Return the images (<key>.jpg, .jpeg, .png) of an uncompressed WebDataset tar with their labels (<key>.cls).

    Raises `DataError` if the shard is truncated or damaged, or has a member of a pair twice or not at all.
    """
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    duplicates: list[str] = []
    try:
        with tarfile.open(path, "r:") as tar:
            end = 0
            for member in tar:
                key, _, suffix = member.name.partition(".") if "/" not in member.name else _split_name(member.name)
                end = member.offset_data + -(-member.size // 512) * 512
                if suffix.lower() in ("jpg", "jpeg", "png"):
                    duplicates += [key] if key in images else []
                    images[key] = (member.offset_data, member.size)
                elif suffix == "cls":
                    duplicates += [key] if key in labels else []
                    file = tar.extractfile(member)
                    labels[key] = int(file.read()) if file else -1
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _damaged(path) from error
    except ValueError as error:
        raise DataError(
            f"{path} contains a .cls that is not a whole number: write the class as a number there."
        ) from error
    with open(path, "rb") as shard:
        shard.seek(end)
        rest = shard.read(_TAR_END_BYTES + tarfile.RECORDSIZE)
    if len(rest) < _TAR_END_BYTES or any(rest):  # tarfile takes an unreadable header for the end
        raise _damaged(path)
    if duplicates:
        raise DataError(f"{path} contains {duplicates[0]} twice: give each image a unique name.")
    if unpaired := sorted(images.keys() ^ labels.keys()):
        raise DataError(f"{path} lacks the image or the .cls of {unpaired[0]}: each image needs both.")
    if not images:
        raise DataError(f"{path} contains no image: remove the shard or fill it.")
    return [Location(*span, labels[key]) for key, span in images.items()]


def read_tfrecord(path: Path) -> list[Location]:
    """Return the images of a TFRecord shard of `tf.train.Example`s with `image/encoded` and `image/class/label`.

    Only the frames of records are read: the checksums of their lengths are checked, those of the images are not. Raises
    `DataError` if the shard is truncated or damaged, or contains other records.
    """
    size = path.stat().st_size
    if not size:
        raise _damaged(path)
    locations: list[Location] = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < size:
            if at + _HEADER_BYTES > size:
                raise _damaged(path)
            (length,) = struct.unpack_from("<Q", data, at)
            length_is_valid = data[at + 8 : at + _HEADER_BYTES] == _checksum(data[at : at + 8])
            start = at + _HEADER_BYTES
            at = start + length + _FOOTER_BYTES
            if not length_is_valid or at > size:
                raise _damaged(path)
            try:
                locations.append(_locate_image(data, start, start + length))
            except (ValueError, IndexError, StopIteration) as error:
                raise DataError(
                    f"{path} contains a record without image/encoded and image/class/label: "
                    "write it in ImageNet's format."
                ) from error
    return locations


def write_tar(path: Path, images: Iterable[tuple[bytes, int]]) -> None:
    """Write encoded images with their labels as a WebDataset shard."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, (data, label) in enumerate(images):
            for suffix, content in (("jpg", data), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_tfrecord(path: Path, images: Iterable[tuple[bytes, int]]) -> None:
    """Write encoded images with their labels as a TFRecord shard of Examples, with checksums."""
    with open(path, "wb") as file:
        for data, label in images:
            encoded = _field(1, _field(1, data))
            number = _field(3, _field(1, _varint(label)))
            entries = ((b"image/encoded", encoded), (b"image/class/label", number))
            features = b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in entries)
            record = _field(1, features)
            length = struct.pack("<Q", len(record))
            file.write(length + _checksum(length) + record + _checksum(record))


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a name at the first dot of its last part into WebDataset's key, dot and suffix."""
    folder, _, last = name.rpartition("/")
    key, dot, suffix = last.partition(".")
    return f"{folder}/{key}", dot, suffix


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is truncated or damaged: fetch or write the shard again.")


def _locate_image(data: mmap.mmap, start: int, end: int) -> Location:
    """Find image and label in a serialized Example without copying it (protocol buffers' wire format)."""
    image, label = None, None
    for features in _messages(data, start, end, 1):
        for entry in _messages(data, *features, 1):
            name = next(_messages(data, *entry, 1))
            value = next(_messages(data, *entry, 2))
            match data[slice(*name)]:
                case b"image/encoded":
                    image = next(_messages(data, *next(_messages(data, *value, 1)), 1))
                case b"image/class/label":
                    numbers = next(_messages(data, *value, 3))
                    label = _first_number(data, *numbers)
    if image is None or label is None:
        raise ValueError
    return Location(image[0], image[1] - image[0], label)


def _messages(data: mmap.mmap, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each length-delimited field with the number `wanted` between `start` and `end`."""
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


def _first_number(data: mmap.mmap, start: int, end: int) -> int:
    """Return the first number of an Int64List, packed or not."""
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
    """Return TFRecord's masked CRC-32C in little-endian order."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
