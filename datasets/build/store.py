"""The datasets below a folder: fetched, prepared, verified and bundled, each of these atomically."""

import fcntl
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...runner.core.atomic_files import is_disk_full, open_lock, write_failure
from ...runner.core.errors import ConfigurationError, DataError, DiskFull
from ...runner.core.progress import ProgressCallback, no_progress
from ..download import archives, bundles, manifest
from ..download.downloader import Downloader
from ..download.transport import RetryPolicy
from ..download.worker_pool import ByteCounter, WorkerPool
from ..registry.catalog import RawFile, Source
from .dataset_builder import BuildStep, DatasetBuilder

_BUILD_VERSION = 1  # increase it to discard partial builds of older versions


class DatasetStore:
    """Datasets in `folder`/<name>/, each with a manifest of its files; raw files in `folder`/downloads/.

    A dataset is built in `folder`/.<name>.preparing/ and appears when it is complete. Writers must hold `lock()`.
    """

    def __init__(
        self, folder: Path, jobs: int = 4, progress: ProgressCallback = no_progress, retry: RetryPolicy | None = None
    ) -> None:
        self._folder, self._pool = folder, WorkerPool(jobs, progress)
        self._downloader = Downloader(folder / "downloads", self._pool, retry or RetryPolicy())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process; raises `ConfigurationError` if another process holds the lock."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock_file = open_lock(self._folder / ".acquiring")
        except OSError as error:
            raise write_failure(self._folder, error, "name another --data-dir", DataError) from error
        with lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"Another timetrial data command is running in {self._folder}: wait for it to end."
                ) from error
            except OSError:
                pass  # the file system has no locks, so that users must avoid concurrent commands
            yield

    def state(self, source: Source) -> str:
        """Return ready, unmanaged (no manifest), damaged (files missing or of other sizes), partial or missing."""
        path = self._folder / source.name
        if path.exists():
            if not (path / manifest.FILE_NAME).exists():
                return "unmanaged"
            try:
                fault = next(manifest.find_size_faults(path, manifest.read(path)), None)
            except DataError:
                return "damaged"
            return "damaged" if fault else "ready"
        has_started = self._build_folder(source).exists() or any(map(self._downloader.has_started, source.files))
        return "partial" if has_started else "missing"

    def recorded_checksums(self, source: Source) -> int:
        """Return how many files without a published checksum have that of their first download recorded."""
        return sum(self._downloader.has_record(file) for file in source.files if not file.published_checksum)

    def fetch(self, sources: Iterable[Source], origin: Path | None = None) -> None:
        """Get the raw files of the datasets that do not exist yet, as `Downloader.fetch` does."""
        missing = [source for source in sources if not (self._folder / source.name).exists()]
        with _data_errors(self._folder):
            self._downloader.fetch(missing, origin)

    def prepare(self, source: Source) -> None:
        """Build a dataset from its raw files unless it exists; continues an interrupted build."""
        target, build_folder = self._folder / source.name, self._build_folder(source)
        if target.exists():
            shutil.rmtree(build_folder, ignore_errors=True)  # left by a killed process
            return
        raw_paths = self._raw_paths(source)
        checksums = {file.name: self._downloader.manifest_entry(file).sha256 for file in raw_paths}
        key = repr((_BUILD_VERSION, source.files, source.conversion, source.outputs, checksums))
        current = build_folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        with _data_errors(self._folder):
            for folder in build_folder.glob("*"):
                if folder != current:  # of other raw files or another description
                    shutil.rmtree(folder)
            total = sum(path.stat().st_size for path in raw_paths.values())
            count = self._pool.byte_counter(f"preparing {source.name}", total)
            builder = DatasetBuilder(current, self._pool, count)
            if source.conversion:
                from . import conversions

                conversions.convert(source, {file.name: path for file, path in raw_paths.items()}, builder)
            else:
                builder.run([_unpack_step(file, path) for file, path in raw_paths.items()])
            builder.publish(target, {"dataset": source.name, "raw_files": checksums}, source.outputs)
            shutil.rmtree(build_folder)

    def find_faults(self, source: Source) -> Iterator[str]:
        """Yield a sentence for each file of a dataset that differs from its manifest; reads all files."""
        path = self._folder / source.name
        if not path.exists():
            raise DataError(f"{path} is missing: run timetrial data fetch {source.name}.")
        return manifest.find_faults(path, manifest.read(path), self._pool)

    def write_bundle(self, sources: Sequence[Source], out: Path) -> None:
        """Write the raw files of the datasets, which must have been fetched, as one bundle."""
        files = {file: path for source in sources for file, path in self._raw_paths(source).items()}
        entries = {file.name: (self._downloader.manifest_entry(file), path) for file, path in files.items()}
        titles = {source.name: f"{source.title}; {source.license} ({source.license_url})" for source in sources}
        bundles.write(out, {"datasets": titles}, list(entries.values()), self._pool.progress)

    def _raw_paths(self, source: Source) -> dict[RawFile, Path]:
        """Return the paths of a dataset's raw files; raises `DataError` if one is missing."""
        paths = {file: self._downloader.verified_path(file) for file in source.files}
        for file, path in paths.items():
            if not path and not file.optional:
                raise DataError(f"{file.name} has not been fetched: run timetrial data fetch {source.name}.")
        return {file: path for file, path in paths.items() if path}

    def _build_folder(self, source: Source) -> Path:
        return self._folder / f".{source.name}.preparing"


@contextmanager
def _data_errors(folder: Path) -> Iterator[None]:
    """Turn the error for a full disk into `DiskFull`, and other errors of reading and writing into `DataError`."""
    try:
        yield
    except OSError as error:
        path = error.filename or f"A file below {folder}"
        kind = DiskFull if is_disk_full(error) else DataError
        raise kind(
            f"{path} cannot be read or written ({error.strerror}): free space there, or name another --data-dir."
        ) from error


def _unpack_step(file: RawFile, path: Path) -> BuildStep:
    """Return the step that unpacks one archive, or copies one other file."""

    def build(folder: Path, count: ByteCounter) -> None:
        archives.unpack(path, folder, file.target_path, count)

    return BuildStep(file.name, build)
