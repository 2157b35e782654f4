"""Raw files as their publishers provide them: fetched or found, checked, and recognized again."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ...runner.core.errors import DataError, DiskFull
from ..registry.catalog import RawFile, Source
from . import bundles, manifest
from .manifest import Entry
from .transport import RetryPolicy, Transport
from .worker_pool import WorkerPool

_SUFFIXES = ("", ".part")  # of a complete and of a partial file
_REMEDY = "replace it, or remove it to fetch it again."
_CHUNK_BYTES = 1 << 20


class Downloader:
    """Raw files in `folder`, or wherever the user has them.

    A record of each file, `.<name>.record`, keeps the SHA-256 that it had when it was first seen, also where none is
    published. Size and modification time in the record tell whether the file is still the same.
    """

    def __init__(self, folder: Path, pool: WorkerPool, retry: RetryPolicy) -> None:
        self._folder, self._pool = folder, pool
        self._transport = Transport(retry)

    def verified_path(self, file: RawFile) -> Path | None:
        """Return where a raw file is that was verified and has not been modified since."""
        record = self._read_record(file)
        path = Path(record.get("path", self._folder / file.name))
        try:
            stat = path.stat()
        except OSError:
            return None
        is_unmodified = (stat.st_size, stat.st_mtime_ns) == (record.get("bytes"), record.get("mtime_ns"))
        return path if is_unmodified and file.sha256 in (None, record["sha256"]) else None

    def manifest_entry(self, file: RawFile) -> Entry:
        """Return the manifest entry of a file that has a `verified_path`."""
        record = self._read_record(file)
        return Entry(record["sha256"], record["bytes"], file.name)

    def has_started(self, file: RawFile) -> bool:
        """Return whether any part of the file has been downloaded."""
        return any((self._folder / f"{file.name}{suffix}").exists() for suffix in _SUFFIXES)

    def has_record(self, file: RawFile) -> bool:
        """Return whether the SHA-256 of an earlier download is recorded."""
        return "sha256" in self._read_record(file)

    def fetch(self, sources: Iterable[Source], origin: Path | None) -> None:
        """Get the raw files of the datasets from `origin`, a folder or a bundle, or else from their URLs.

        Files in a folder are used in place. Raises `DataError` for files that cannot be had or fail verification; what
        has been downloaded by then is kept.
        """
        missing = {
            file.name: (file, source) for source in sources for file in source.files if not self.verified_path(file)
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        size = 0 if origin else sum(self._remaining_bytes(file) for file, _ in missing.values())
        free = shutil.disk_usage(self._folder).free
        if size > free:
            raise DiskFull(
                f"The download takes {size / 1e9:.1f} GB and {self._folder} has {free / 1e9:.1f} GB free: "
                "free space there or name another --data-dir."
            )
        fetch_file = partial(self._fetch_from, origin) if origin else self._fetch_from_urls
        self._pool.run((partial(fetch_file, *pair) for pair in missing.values()), self._transport.stop)

    def _remaining_bytes(self, file: RawFile) -> int:
        """Return how many bytes of a file are still to be downloaded, as far as its size is known."""
        paths = [self._folder / f"{file.name}{suffix}" for suffix in _SUFFIXES]
        downloaded = sum(path.stat().st_size for path in paths if path.exists())
        return max((file.bytes or 0) - downloaded, 0) if file.urls else 0

    def _fetch_from_urls(self, file: RawFile, source: Source) -> None:
        path = self._folder / file.name
        if path.is_file():  # placed there by the user, or completed just before the process was killed
            self._verify(file, path)
        elif file.urls:
            self._record(file, path, self._transport.fetch(file, path, self._pool.progress))
        elif not file.optional:
            raise DataError(
                f"{file.name} cannot be downloaded: request it at {source.homepage}, then add --from FOLDER."
            )

    def _fetch_from(self, origin: Path, file: RawFile, source: Source) -> None:
        path = self._folder / file.name
        if origin.is_dir():
            if (origin / file.name).is_file():
                self._verify(file, (origin / file.name).resolve())
                return
        elif file.name in {entry.path for entry in bundles.read_manifest(origin).entries}:
            bundles.extract(origin, file.name, path, self._pool.progress)
        if path.is_file():
            self._verify(file, path)
        elif not file.optional:
            raise DataError(
                f"{origin} does not contain {file.name}: add it, from {source.homepage}, or leave --from out."
            )

    def _verify(self, file: RawFile, path: Path) -> None:
        """Check the size and the published checksum of a raw file and record it; raises `DataError`."""
        size = path.stat().st_size
        if file.bytes not in (None, size):
            raise DataError(f"{path} has {size:,} bytes, not {file.bytes:,}: {_REMEDY}")
        count = self._pool.byte_counter(f"checking {file.name}", size)
        algorithm, published = file.published_checksum or ("sha256", None)
        hashes = {name: hashlib.new(name) for name in ("sha256", algorithm)}
        with open(path, "rb") as opened:
            while data := opened.read(_CHUNK_BYTES):
                for digest in hashes.values():
                    digest.update(data)
                count(len(data))
        checksums = {name: digest.hexdigest() for name, digest in hashes.items()}
        if published not in (None, checksums[algorithm]):
            raise DataError(f"{path} has the {algorithm} {checksums[algorithm]}, not {published}: {_REMEDY}")
        self._record(file, path, checksums["sha256"])

    def _record(self, file: RawFile, path: Path, sha256: str) -> None:
        """Record a raw file; raises `DataError` if an earlier record has another checksum and none is published."""
        first_sha256 = self._read_record(file).get("sha256", sha256)
        if first_sha256 != sha256 and not file.published_checksum:
            raise DataError(
                f"{path} differs from the file that was first fetched (SHA-256 {first_sha256}): if a new version was "
                f"published, remove {self._record_path(file)} and {path}, and fetch it again."
            )
        stat = path.stat()
        record = {"sha256": sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if path.parent != self._folder:
            record["path"] = str(path)
        manifest.write_text(self._record_path(file), json.dumps(record) + "\n")

    def _read_record(self, file: RawFile) -> dict[str, Any]:
        try:
            return dict(json.loads(self._record_path(file).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _record_path(self, file: RawFile) -> Path:
        return self._folder / f".{file.name}.record"
