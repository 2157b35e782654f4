"""Bundles of downloaded files for machines without network access.

A bundle is an uncompressed tar whose first member is a manifest. Equal files give equal bytes, and verification covers
every byte: tar headers and padding are compared with what they must be.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from ...runner.core.found_files import open_regular
from ...runner.core.progress import ProgressCallback
from . import manifest
from .manifest import Entry, Manifest

_MANIFEST_NAME = "timetrial-bundle.txt"
_CHUNK_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 24


def write(
    out: Path, metadata: Mapping[str, Any], files: Sequence[tuple[Entry, Path]], progress: ProgressCallback
) -> None:
    """Write the files and a manifest with `metadata` as a bundle, atomically.

    Raises `DataError` if a file no longer matches its entry.
    """
    files = sorted(files, key=lambda file: file[0].path)
    text = Manifest(dict(metadata), [entry for entry, _ in files]).to_text().encode()
    with atomic_write(out, single_writer=True) as temporary, open(temporary, "wb") as bundle:
        bundle.write(_header(_MANIFEST_NAME, len(text)) + text + _padding(len(text)))
        for entry, path in files:
            bundle.write(_header(entry.path, entry.size))
            with open(path, "rb") as file:
                if _copy(file, entry, bundle, progress) != entry.sha256 or file.read(1):
                    raise DataError(f"{path} has changed since it was fetched: remove it and fetch it again.")
            bundle.write(_padding(entry.size))
        bundle.write(_end_of_archive(bundle.tell()))


def read_manifest(bundle: Path) -> Manifest:
    """Return the manifest of a bundle; raises `DataError` if it is damaged or the file is not a bundle."""
    with open_regular(bundle) as file:
        return _read_manifest(file, bundle)


def find_faults(bundle: Path, progress: ProgressCallback) -> Iterator[str]:
    """Yield a sentence for each part of a bundle that has changed, down to the last byte."""
    with open_regular(bundle) as file:
        listed = _read_manifest(file, bundle)
        for entry in listed.entries:
            header = _header(entry.path, entry.size)
            if file.read(len(header)) != header:
                yield f"{bundle} has changed just before {entry.path}."
            if _copy(file, entry, None, progress) != entry.sha256:
                yield f"{entry.path} in {bundle} has changed: its SHA-256 differs from the manifest."
            padding = _padding(entry.size)
            if file.read(len(padding)) != padding:
                yield f"{bundle} has changed just after {entry.path}."
        end = _end_of_archive(file.tell())
        if file.read(len(end) + 1) != end:
            yield f"{bundle} is truncated, or something was appended to it."


def extract(bundle: Path, name: str, path: Path, progress: ProgressCallback) -> Entry:
    """Copy one file out of a bundle to `path`, atomically; raises `DataError` if it has changed."""
    with open_regular(bundle) as file:
        for entry in _read_manifest(file, bundle).entries:
            file.seek(len(_header(entry.path, entry.size)), io.SEEK_CUR)
            if entry.path != name:
                file.seek(entry.size + len(_padding(entry.size)), io.SEEK_CUR)
                continue
            with atomic_write(path, single_writer=True) as temporary, open(temporary, "wb") as out:
                if _copy(file, entry, out, progress) != entry.sha256:
                    raise DataError(f"{name} in {bundle} has changed: copy the bundle again.")
            return entry
    raise DataError(f"{bundle} does not contain {name}: use another bundle, or fetch it from its publisher.")


def _read_manifest(file: IO[bytes], bundle: Path) -> Manifest:
    try:
        size = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "strict").size
        file.seek(0)
        header = _header(_MANIFEST_NAME, size)
        if size > _MAX_MANIFEST_BYTES or file.read(len(header)) != header:
            raise ValueError
        text = file.read(size).decode()
        padding = _padding(size)
        if file.read(len(padding)) != padding:
            raise ValueError
    except (tarfile.TarError, ValueError) as error:
        raise DataError(f"{bundle} is not a bundle, or its beginning is damaged: write or copy it again.") from error
    return manifest.parse(text, str(bundle))


def _copy(source: IO[bytes], entry: Entry, out: IO[bytes] | None, progress: ProgressCallback) -> str:
    """Read `entry.size` bytes, write them to `out` if it is given, and return their SHA-256."""
    digest, done = hashlib.sha256(), 0
    while done < entry.size and (data := source.read(min(_CHUNK_BYTES, entry.size - done))):
        digest.update(data)
        if out:
            out.write(data)
        done += len(data)
        progress(entry.path, done, entry.size)
    return digest.hexdigest()


def _header(name: str, size: int) -> bytes:
    """Return a tar header without owner and time."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)  # supports sizes beyond 8 GiB


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _end_of_archive(written: int) -> bytes:
    """Return the zero blocks that end a tar of `written` bytes, up to a whole record."""
    return bytes(-(written + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE)
