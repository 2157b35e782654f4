"""Manifests: lists of files with their SHA-256, protected by a checksum of their own."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from ...runner.core.found_files import UnreadableFile, open_regular
from .worker_pool import ByteCounter, WorkerPool

FILE_NAME = ".manifest"  # in a dataset's folder; readers of image folders skip names that begin with a dot
_FORMAT = "timetrial 1"
_CHUNK_BYTES = 1 << 20


class Entry(NamedTuple):
    """A file: its hexadecimal SHA-256, its size in bytes, and its path below the folder or its name in a bundle."""

    sha256: str
    size: int
    path: str


@dataclass(frozen=True)
class Manifest:
    """The files of a dataset or bundle; `metadata` is anything else that JSON can hold."""

    metadata: dict[str, Any]
    entries: Sequence[Entry]

    def to_text(self) -> str:
        """Return the format, the metadata and the files in order of path, a line each, then the SHA-256 of all that."""
        lines = [_FORMAT, json.dumps(self.metadata, sort_keys=True)]
        entries = sorted(self.entries, key=lambda entry: entry.path)
        lines += [f"{entry.sha256} {entry.size} {entry.path}" for entry in entries]
        body = "".join(f"{line}\n" for line in lines)
        return f"{body}{hashlib.sha256(body.encode()).hexdigest()}\n"


def parse(text: str, name: str) -> Manifest:
    """Parse the output of `Manifest.to_text`; raises `DataError` naming `name` if any of it has changed."""
    body, _, checksum = text.removesuffix("\n").rpartition("\n")
    lines = body.split("\n")
    try:
        if checksum != hashlib.sha256(f"{body}\n".encode()).hexdigest() or lines[0] != _FORMAT or text[-1:] != "\n":
            raise ValueError("its own SHA-256 differs")
        rows = [line.split(" ", 2) for line in lines[2:]]
        return Manifest(json.loads(lines[1]), [Entry(sha256, int(size), path) for sha256, size, path in rows])
    except (ValueError, IndexError) as error:
        raise DataError(f"{name} is damaged ({error}): remove the files that it lists and fetch them again.") from error


def read(folder: Path) -> Manifest:
    """Read the manifest in a dataset's folder; raises `DataError` if there is none or it is damaged."""
    path = folder / FILE_NAME
    try:
        with open_regular(path) as file:
            return parse(file.read().decode(), str(path))
    except (UnreadableFile, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: remove {folder} and fetch it again.") from error


def hash_file(root: Path, path: str, count: ByteCounter) -> Entry:
    """Return the entry of a file as it is now."""
    digest, size = hashlib.sha256(), 0
    with open_regular(root / path) as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
            size += len(data)
            count(len(data))
    return Entry(digest.hexdigest(), size, path)


def hash_tree(folder: Path, count: ByteCounter) -> list[Entry]:
    """Return the entries of all files below a folder, except its manifest."""
    return [hash_file(folder, path, count) for path in sorted(_paths_below(folder))]


def find_size_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each listed file that is missing or has another size, without reading any file."""
    for entry in manifest.entries:
        try:
            size = (folder / entry.path).stat().st_size
        except OSError:
            yield f"{folder / entry.path} is missing."
        else:
            if size != entry.size:
                yield f"{folder / entry.path} has {size:,} bytes, not {entry.size:,}."


def find_faults(folder: Path, manifest: Manifest, pool: WorkerPool) -> Iterator[str]:
    """Yield a sentence for each file that has changed or is not listed; reads all files."""
    count = pool.byte_counter(f"verifying {folder.name}", sum(entry.size for entry in manifest.entries))

    def find_fault(entry: Entry) -> str | None:
        try:
            if hash_file(folder, entry.path, count) != entry:
                return f"{folder / entry.path} has changed: its SHA-256 differs from the manifest."
        except UnreadableFile as error:
            return str(error)
        except OSError as error:
            return f"{folder / entry.path} cannot be read ({error.strerror})."
        return None

    yield from (fault for fault in pool.map(find_fault, manifest.entries) if fault)
    listed = {entry.path for entry in manifest.entries}
    for path in sorted(_paths_below(folder)):
        if path not in listed:
            yield f"{folder / path} is not in the manifest: it was added later."


def write_text(path: Path, text: str) -> None:
    """Write a small file that no other process writes, atomically."""
    with atomic_write(path, single_writer=True) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _paths_below(folder: Path) -> Iterable[str]:
    for parent, _, names in os.walk(folder):
        relative = Path(parent).relative_to(folder)
        yield from (str(relative / name) for name in names if (str(relative), name) != (".", FILE_NAME))
