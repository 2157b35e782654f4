"""Bundles for machines without a network: one plain tar of downloaded files, behind a list of their SHA-256.

Equal files make equal bytes, and every byte is accounted for: headers and filling are compared with what they must be.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from . import manifest
from .manifest import Entry, Receipt
from .worker_pool import Tell

_LIST = "timetrial-bundle.txt"  # of the first member
_CHUNK = 1 << 20
_LONGEST_LIST = 1 << 24  # bytes


def write(out: Path, about: Mapping[str, Any], files: Sequence[tuple[Entry, Path]], tell: Tell) -> None:
    """Writes the files, whose entries are known, with `about` in their list; whole or not at all.

    Raises `DataError` where one of them is no longer as its entry says.
    """
    files = sorted(files, key=lambda file: file[0].path)
    listed = Receipt(dict(about), [entry for entry, _ in files]).text().encode()
    with atomic_write(out, single_writer=True) as temporary, open(temporary, "wb") as bundle:
        bundle.write(_header(_LIST, len(listed)) + listed + _filling(len(listed)))
        for entry, path in files:
            bundle.write(_header(entry.path, entry.bytes))
            with open(path, "rb") as file:
                if _copy(file, entry, bundle, tell) != entry.sha256 or file.read(1):
                    raise DataError(f"{path} has changed since it was fetched: remove it and fetch it again.")
            bundle.write(_filling(entry.bytes))
        bundle.write(_end(bundle.tell()))


def read_list(bundle: Path) -> Receipt:
    """What a bundle holds; raises `DataError` where it is none or its list is damaged."""
    with _opened(bundle) as file:
        return _read_list(file, bundle)


def faults(bundle: Path, tell: Tell) -> Iterator[str]:
    """A sentence for everything in a bundle that is not as it was written, to the last byte."""
    with _opened(bundle) as file:
        listed = _read_list(file, bundle)
        for entry in listed.entries:
            header = _header(entry.path, entry.bytes)
            if file.read(len(header)) != header:
                yield f"{bundle} has changed just before {entry.path}."
            if _copy(file, entry, None, tell) != entry.sha256:
                yield f"{entry.path} in {bundle} has changed: its SHA-256 is not the one that is listed."
            filling = _filling(entry.bytes)
            if file.read(len(filling)) != filling:
                yield f"{bundle} has changed just after {entry.path}."
        end = _end(file.tell())
        if file.read(len(end) + 1) != end:
            yield f"{bundle} is cut short, or something was appended to it."


def take(bundle: Path, name: str, place: Path, tell: Tell) -> Entry:
    """Copies one file out of a bundle to `place`, whole or not at all; raises `DataError` where it has changed."""
    with _opened(bundle) as file:
        for entry in _read_list(file, bundle).entries:
            file.seek(len(_header(entry.path, entry.bytes)), io.SEEK_CUR)
            if entry.path != name:
                file.seek(entry.bytes + len(_filling(entry.bytes)), io.SEEK_CUR)
                continue
            with atomic_write(place, single_writer=True) as temporary, open(temporary, "wb") as out:
                if _copy(file, entry, out, tell) != entry.sha256:
                    raise DataError(f"{name} in {bundle} has changed: copy the bundle again.")
            return entry
    raise DataError(f"{bundle} does not hold {name}: take another bundle, or fetch it from its makers.")


def _opened(bundle: Path) -> IO[bytes]:
    try:
        return open(bundle, "rb")
    except OSError as error:
        raise DataError(f"{bundle} cannot be read ({error.strerror}): name a bundle that is there.") from error


def _read_list(file: IO[bytes], bundle: Path) -> Receipt:
    try:
        size = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "strict").size
        file.seek(0)
        header = _header(_LIST, size)
        if size > _LONGEST_LIST or file.read(len(header)) != header:
            raise ValueError
        text = file.read(size).decode()
        filling = _filling(size)
        if file.read(len(filling)) != filling:
            raise ValueError
    except (tarfile.TarError, ValueError) as error:
        raise DataError(f"{bundle} is no bundle, or its beginning is damaged: write or copy it again.") from error
    return manifest.parse(text, str(bundle))


def _copy(source: IO[bytes], entry: Entry, out: IO[bytes] | None, tell: Tell) -> str:
    """Reads as many bytes as the entry says, writes them if there is an `out`, and returns their SHA-256."""
    digest, done = hashlib.sha256(), 0
    while done < entry.bytes and (data := source.read(min(_CHUNK, entry.bytes - done))):
        digest.update(data)
        if out:
            out.write(data)
        done += len(data)
        tell(entry.path, done, entry.bytes)
    return digest.hexdigest()


def _header(name: str, size: int) -> bytes:
    """A tar header that says nothing but this: neither owner nor time."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)  # which knows sizes beyond 8 GiB


def _filling(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _end(written: int) -> bytes:
    """The empty blocks that close a tar of so many bytes, to a whole record."""
    return bytes(-(written + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE)
