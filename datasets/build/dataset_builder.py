"""Where a data set is made of its raw files: part by part, so that a kill costs one part and leaves nothing half."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...runner.core.errors import DataError
from ..download import manifest
from ..download.archives import Step
from ..download.manifest import Entry, Receipt
from ..download.worker_pool import Crew


class Part(NamedTuple):
    """What `make` puts into a new folder becomes part of the set, `below` a folder of it; names are the set's own."""

    name: str
    make: Callable[[Path, Step], None]
    below: str = ""


class Workshop:
    """A hidden `folder` with `whole/`, which becomes the set, and `parts/`, the receipts of the parts that are in it.

    `step` takes how many more bytes have been dealt with, and raises `Stopped` when it is time.
    """

    def __init__(self, folder: Path, crew: Crew, step: Step) -> None:
        self.crew, self._folder, self._step = crew, folder, step
        self._whole, self._notes = folder / "whole", folder / "parts"
        if not self._whole.exists():  # a kill came after it had become a set, which is gone again
            shutil.rmtree(self._notes, ignore_errors=True)
            self._whole.mkdir(parents=True)

    def make(self, parts: Sequence[Part]) -> None:
        """Makes those of the parts that are not there yet, several at a time."""
        self.crew.run(partial(self._make, part) for part in parts)

    def entries(self) -> list[Entry]:
        """All files that are in the set so far."""
        notes = sorted(note for note in self._notes.glob("*") if note.suffix != ".part")
        return [
            entry for note in notes for entry in manifest.parse(note.read_text(encoding="utf-8"), str(note)).entries
        ]

    def finish(self, place: Path, about: Mapping[str, Any], makes: Mapping[str, str | None]) -> None:
        """Makes the set appear at `place`, with its receipt, and removes the workshop.

        Raises `DataError` if what recipes read (`makes`, with their md5 where it is published) is not what was made.
        """
        receipt = Receipt(dict(about), self.entries())
        for fault in manifest.quick_faults(self._whole, receipt):
            raise DataError(
                f"{fault.removesuffix('.')}, although it was made: remove {self._folder} and prepare again."
            )
        for path, md5 in makes.items():
            if not (self._whole / path).exists():
                raise DataError(f"{place / path} did not come of the files fetched: they are another edition.")
            if md5 and hashlib.md5((self._whole / path).read_bytes()).hexdigest() != md5:
                raise DataError(f"{place / path} would not have the md5 {md5}: the files fetched are another edition.")
        manifest.write_whole(self._whole / manifest.NAME, receipt.text())
        self._whole.rename(place)
        shutil.rmtree(self._folder)

    def _make(self, part: Part) -> None:
        note = self._notes / part.name
        if note.exists():
            return
        new = self._folder / f"{part.name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        part.make(new, self._step)
        made = manifest.entries_below(new, lambda _: self._step(0))
        home = self._whole / part.below
        home.mkdir(parents=True, exist_ok=True)
        for thing in sorted(new.iterdir()):
            there = home / thing.name  # of an earlier time, which a kill kept from being noted
            if there.is_dir():
                shutil.rmtree(there)
            thing.replace(there)
        new.rmdir()
        placed = [entry._replace(path=str(Path(part.below, entry.path))) for entry in made]
        manifest.write_whole(note, Receipt({"part": part.name}, placed).text())
