"""Raw files as their makers publish them: brought from somewhere, checked, and known again."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ...runner.core.errors import DataError
from ..registry.catalog import RawFile, Source
from . import bundles, manifest
from .manifest import Entry
from .transport import Patience, Transport
from .worker_pool import Crew

_ENDS = ("", ".part")  # of a file's name: whole, or as far as it has arrived
_REMEDY = "replace it, or remove it to fetch it again."


class Downloads:
    """Raw files in `folder`, or where a user has them.

    A record of each, `.<name>.record`, keeps the SHA-256 it had when it was first seen, also for files of which none
    is published, and tells by size and time of change whether it is still that file.
    """

    def __init__(self, folder: Path, crew: Crew, patience: Patience) -> None:
        self._folder, self._crew = folder, crew
        self._transport = Transport(patience)

    def path(self, file: RawFile) -> Path | None:
        """Where a raw file lies that was found to be right and has not been touched since."""
        record = self._record(file)
        path = Path(record.get("path", self._folder / file.name))
        try:
            stat = path.stat()
        except OSError:
            return None
        same = (stat.st_size, stat.st_mtime_ns) == (record.get("bytes"), record.get("mtime_ns"))
        return path if same and file.sha256 in (None, record["sha256"]) else None

    def entry(self, file: RawFile) -> Entry:
        """SHA-256, bytes and name of a file that has a `path`."""
        record = self._record(file)
        return Entry(record["sha256"], record["bytes"], file.name)

    def begun(self, file: RawFile) -> bool:
        """Whether there is anything of it."""
        return any((self._folder / f"{file.name}{end}").exists() for end in _ENDS)

    def fetch(self, sources: Iterable[Source], given: Path | None) -> None:
        """Brings the raw files of the sets from `given`, a folder or a bundle, else from their addresses.

        What lies in a folder is used where it is. Raises `DataError` for what cannot be had or is not what it should
        be; what has arrived by then is kept.
        """
        wanted = {file.name: (file, source) for source in sources for file in source.files if not self.path(file)}
        self._folder.mkdir(parents=True, exist_ok=True)
        size = 0 if given else sum(self._missing(file) for file, _ in wanted.values())
        free = shutil.disk_usage(self._folder).free
        if size > free:
            raise DataError(
                f"{size / 1e9:.1f} GB are to be fetched and {self._folder} has room for {free / 1e9:.1f} GB: "
                "free space there or name another --data-dir."
            )
        bring = partial(self._bring_given, given) if given else self._bring
        self._crew.run((partial(bring, *pair) for pair in wanted.values()), self._transport.stop)

    def _missing(self, file: RawFile) -> int:
        """How many bytes of a file are to be downloaded, as far as that is known."""
        there = [self._folder / f"{file.name}{end}" for end in _ENDS]
        arrived = sum(path.stat().st_size for path in there if path.exists())
        return max((file.bytes or 0) - arrived, 0) if file.urls else 0

    def _bring(self, file: RawFile, source: Source) -> None:
        place = self._folder / file.name
        if place.is_file():  # put there by hand, or just before a kill
            self._check(file, place)
        elif file.urls:
            digest = self._transport.fetch(file, place, partial(self._crew.tell, f"fetching {file.name}"))
            self._note(file, place, digest)
        elif not file.optional:
            raise DataError(f"{file.name} must be brought: ask for it at {source.page}, then add --from FOLDER.")

    def _bring_given(self, given: Path, file: RawFile, source: Source) -> None:
        place = self._folder / file.name
        if given.is_dir():
            there = given / file.name
            if there.is_file():
                self._check(file, there.resolve())
                return
        elif file.name in {entry.path for entry in bundles.read_list(given).entries}:
            bundles.take(given, file.name, place, self._crew.tell)
        if place.is_file():
            self._check(file, place)
        elif not file.optional:
            raise DataError(f"{given} does not hold {file.name}: add it, from {source.page}, or leave --from out.")

    def _check(self, file: RawFile, path: Path) -> None:
        """Reads a raw file and takes it on, or raises `DataError`."""
        size = path.stat().st_size
        if file.bytes not in (None, size):
            raise DataError(f"{path} has {size:,} bytes, not {file.bytes:,}: {_REMEDY}")
        count = self._crew.counter(f"checking {file.name}", size)
        kind, published = file.published_sum or ("sha256", None)
        sums = {name: hashlib.new(name) for name in ("sha256", kind)}
        with open(path, "rb") as opened:
            while data := opened.read(1 << 20):
                for digest in sums.values():
                    digest.update(data)
                count(len(data))
        found = {name: digest.hexdigest() for name, digest in sums.items()}
        if published not in (None, found[kind]):
            raise DataError(f"{path} has the {kind} {found[kind]}, not {published}: {_REMEDY}")
        self._note(file, path, found["sha256"])

    def _note(self, file: RawFile, path: Path, sha256: str) -> None:
        """Records a raw file; raises `DataError` if it is not the one that an earlier record is of."""
        before = self._record(file).get("sha256", sha256)
        if before != sha256 and not file.published_sum:
            raise DataError(
                f"{path} is not the file that was first fetched (its SHA-256 was {before}): if its makers have "
                f"published a new one, remove {self._record_path(file)} and {path}, and fetch it again."
            )
        stat = path.stat()
        record = {"sha256": sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if path.parent != self._folder:
            record["path"] = str(path)
        manifest.write_whole(self._record_path(file), json.dumps(record) + "\n")

    def _record(self, file: RawFile) -> dict[str, Any]:
        try:
            return dict(json.loads(self._record_path(file).read_text()))
        except (OSError, ValueError):
            return {}

    def _record_path(self, file: RawFile) -> Path:
        return self._folder / f".{file.name}.record"
