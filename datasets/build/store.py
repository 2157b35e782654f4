"""The data sets below a folder: fetched, prepared, verified and bundled, each whole or not at all."""

import fcntl
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...runner.core.errors import ConfigurationError, DataError
from ..download import archives, bundles, manifest
from ..download.downloader import Downloads
from ..download.transport import Patience
from ..download.worker_pool import Crew, Tell
from ..registry.catalog import RawFile, Source
from .dataset_builder import Part, Workshop

_FORM = 1  # of what is made: with another number the parts of an unfinished set are made anew


class Store:
    """A set lies in `folder`/<name>/ with a receipt of its files, raw files in `folder`/downloads/.

    A set is made in `folder`/.<name>.preparing/ and appears when it is whole. Whatever writes wants the folder `held`.
    """

    def __init__(
        self, folder: Path, jobs: int = 4, tell: Tell = lambda what, done, total: None, patience: Patience | None = None
    ) -> None:
        self._folder, self._crew = folder, Crew(jobs, tell)
        self._downloads = Downloads(folder / "downloads", self._crew, patience or Patience())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder for this process; raises `ConfigurationError` where another one works in it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = open(self._folder / ".acquiring", "w")  # noqa: SIM115 - closed below
        except OSError as error:
            raise DataError(f"Cannot write {self._folder} ({error.strerror}): name another --data-dir.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"Another timetrial data command works in {self._folder}: wait for it to end."
                ) from error
            except OSError:
                pass  # a file system without locks: two at once are the user's to avoid
            yield

    def state(self, source: Source) -> str:
        """there, by hand (no receipt), damaged (a file is missing or of another size), begun, or absent."""
        place = self._folder / source.name
        if place.exists():
            if not (place / manifest.NAME).exists():
                return "by hand"
            try:
                damaged = next(manifest.quick_faults(place, manifest.read(place)), None)
            except DataError:
                return "damaged"
            return "damaged" if damaged else "there"
        begun = self._workshop(source).exists() or any(self._downloads.begun(file) for file in source.files)
        return "begun" if begun else "absent"

    def fetch(self, sources: Iterable[Source], given: Path | None = None) -> None:
        """Brings the raw files of those sets that are not there, as `Downloads.fetch` does."""
        missing = [source for source in sources if not (self._folder / source.name).exists()]
        with _no_os_errors(self._folder):
            self._downloads.fetch(missing, given)

    def prepare(self, source: Source) -> None:
        """Makes of the raw files what recipes read, unless it is there; goes on where a kill has interrupted it."""
        place, workshop = self._folder / source.name, self._workshop(source)
        if place.exists():
            shutil.rmtree(workshop, ignore_errors=True)  # a kill may have left it
            return
        raw = self._raw(source)
        sums = {file.name: self._downloads.entry(file).sha256 for file in raw}
        key = repr((_FORM, source.files, source.convert, source.makes, sums))
        home = workshop / hashlib.sha256(key.encode()).hexdigest()[:16]
        with _no_os_errors(self._folder):
            for other in workshop.glob("*"):
                if other != home:  # of raw files or facts that are no longer
                    shutil.rmtree(other)
            total = sum(path.stat().st_size for path in raw.values())
            shop = Workshop(home, self._crew, self._crew.counter(f"preparing {source.name}", total))
            if source.convert:
                from . import conversions

                conversions.convert(source, {file.name: path for file, path in raw.items()}, shop)
            else:
                shop.make([_unpacking(file, path) for file, path in raw.items()])
            shop.finish(place, {"set": source.name, "made_of": sums}, source.makes)
            shutil.rmtree(workshop)

    def faults(self, source: Source) -> Iterator[str]:
        """A sentence for each file of a prepared set that is not, to the byte, what was made."""
        place = self._folder / source.name
        if not place.exists():
            raise DataError(f"{place} is missing: timetrial data fetch {source.name} brings it.")
        return manifest.faults(place, manifest.read(place), self._crew)

    def bundle(self, sources: Sequence[Source], out: Path) -> None:
        """Writes the raw files of the sets, which must be fetched, as one bundle."""
        files = {file: path for source in sources for file, path in self._raw(source).items()}
        entries = {file.name: (self._downloads.entry(file), path) for file, path in files.items()}
        about = {source.name: f"{source.title}; {source.licence} ({source.licence_url})" for source in sources}
        bundles.write(out, {"sets": about}, list(entries.values()), self._crew.tell)

    def _raw(self, source: Source) -> dict[RawFile, Path]:
        """The raw files of a set and where they are; raises `DataError` where one is missing."""
        found = {file: self._downloads.path(file) for file in source.files}
        for file, path in found.items():
            if not path and not file.optional:
                raise DataError(f"{file.name} is not fetched: timetrial data fetch {source.name} brings it.")
        return {file: path for file, path in found.items() if path}

    def _workshop(self, source: Source) -> Path:
        return self._folder / f".{source.name}.preparing"


@contextmanager
def _no_os_errors(folder: Path) -> Iterator[None]:
    """One sentence for a full disk, or a file that may not be read or written."""
    try:
        yield
    except OSError as error:
        what = error.filename or f"A file below {folder}"
        raise DataError(
            f"{what} cannot be read or written ({error.strerror}): free space there, or name another --data-dir."
        ) from error


def _unpacking(file: RawFile, path: Path) -> Part:
    """The part of a set that is one archive, or one file as it is."""

    def make(folder: Path, step: archives.Step) -> None:
        archives.unpack(path, folder, file.place, step)

    return Part(file.name, make)
