"""Lists of files with their SHA-256, sealed by one of their own: what was made, and whether it still is."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from .worker_pool import Crew

NAME = ".receipt"  # of the file in a set's folder; readers of images pass over names with a dot
_FORM = "timetrial 1"


class Entry(NamedTuple):
    """A file: its hexadecimal SHA-256, its bytes, and its path below the folder, or its name in a bundle."""

    sha256: str
    bytes: int
    path: str


@dataclass(frozen=True)
class Receipt:
    """`about` is what is recorded beyond the files, anything that JSON can hold."""

    about: dict[str, Any]
    entries: Sequence[Entry]

    def text(self) -> str:
        """A line about it, a line a file in order of their paths, and the SHA-256 of all that."""
        lines = [_FORM, json.dumps(self.about, sort_keys=True)]
        lines += [f"{entry.sha256} {entry.bytes} {entry.path}" for entry in sorted(self.entries, key=lambda e: e.path)]
        body = "".join(f"{line}\n" for line in lines)
        return f"{body}{hashlib.sha256(body.encode()).hexdigest()}\n"


def parse(text: str, name: str) -> Receipt:
    """What `Receipt.text` wrote; raises `DataError` with `name` where a letter of it has changed."""
    body, _, seal = text.removesuffix("\n").rpartition("\n")
    lines = body.split("\n")
    try:
        if seal != hashlib.sha256(f"{body}\n".encode()).hexdigest() or lines[0] != _FORM or not text.endswith("\n"):
            raise ValueError("its own SHA-256 differs")
        rows = [line.split(" ", 2) for line in lines[2:]]
        return Receipt(json.loads(lines[1]), [Entry(sha256, int(size), path) for sha256, size, path in rows])
    except (ValueError, IndexError) as error:
        raise DataError(f"{name} is damaged ({error}): remove what it lists and fetch it again.") from error


def read(folder: Path) -> Receipt:
    """The receipt in a set's folder; raises `DataError` where there is none that can be read."""
    path = folder / NAME
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: remove {folder} and fetch it again.") from error


def entry_of(root: Path, path: str, read_on: Callable[[int], None]) -> Entry:
    """The entry of a file as it is now; `read_on` takes how many more bytes have been read."""
    digest, size = hashlib.sha256(), 0
    with open(root / path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
            size += len(data)
            read_on(len(data))
    return Entry(digest.hexdigest(), size, path)


def entries_below(folder: Path, read_on: Callable[[int], None]) -> list[Entry]:
    """The entries of all files below a folder, but for a receipt; `read_on` as `entry_of` has it."""
    return [entry_of(folder, path, read_on) for path in sorted(_paths_below(folder))]


def quick_faults(folder: Path, receipt: Receipt) -> Iterator[str]:
    """A sentence for each file that is missing or of another size than the receipt says; reads none of them."""
    for entry in receipt.entries:
        try:
            size = (folder / entry.path).stat().st_size
        except OSError:
            yield f"{folder / entry.path} is missing."
        else:
            if size != entry.bytes:
                yield f"{folder / entry.path} has {size:,} bytes, not {entry.bytes:,}."


def faults(folder: Path, receipt: Receipt, crew: Crew) -> Iterator[str]:
    """A sentence for each file that is not what the receipt says, or that it does not list; reads all of them."""
    count = crew.counter(f"verifying {folder.name}", sum(entry.bytes for entry in receipt.entries))

    def fault(entry: Entry) -> str | None:
        try:
            if entry_of(folder, entry.path, count) != entry:
                return f"{folder / entry.path} has changed: its SHA-256 is not that of its receipt."
        except OSError as error:
            return f"{folder / entry.path} cannot be read ({error.strerror})."
        return None

    yield from (sentence for sentence in crew.map(fault, receipt.entries) if sentence)
    listed = {entry.path for entry in receipt.entries}
    for path in sorted(_paths_below(folder)):
        if path not in listed:
            yield f"{folder / path} is not in the receipt: somebody has put it there."


def write_whole(path: Path, text: str) -> None:
    """Writes a small file that no other process writes, as `atomic_write` does."""
    with atomic_write(path, single_writer=True) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _paths_below(folder: Path) -> Iterable[str]:
    for parent, _, names in os.walk(folder):
        below = Path(parent).relative_to(folder)
        yield from (str(below / name) for name in names if (str(below), name) != (".", NAME))
