"""The digest that says which data a run trained on, and finds prepared data that have changed on the disk."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ..core.atomic_files import atomic_write, to_json
from ..core.errors import DataError

_BLOCK_BYTES = 1 << 20
_WHOLE_BYTES = 64 * _BLOCK_BYTES  # larger files are sampled
_DIGITS = 16


def digest(content: Iterable[Path | bytes], cache: Path | None = None) -> str | None:
    """Return 16 hexadecimal digits for what preparation stored, in its order; None if there is nothing.

    Equal content gives equal digits, wherever the files lie. Of a file above 64 MiB, its size and 64 evenly spaced
    blocks of 1 MiB count. Raises `DataError` for a file that cannot be read, and if files in the folder `cache` have
    changed since the last call although their names, sizes and times are the same.
    """
    parts, cached = [], {}
    for part in content:
        parts.append(_digest_file(part) if isinstance(part, Path) else hashlib.sha256(part).digest())
        if isinstance(part, Path) and cache is not None and cache in part.parents:
            cached[part] = parts[-1]
    if cache is not None and cached:
        _check_unchanged(cached, cache / "digests")
    return hashlib.sha256(b"".join(parts)).hexdigest()[:_DIGITS] if parts else None


def _check_unchanged(files: Mapping[Path, bytes], folder: Path) -> None:
    """Compare the digests of files with those kept in `folder`; a file that is prepared again has another time."""
    names = "|".join(os.path.abspath(path) for path in files)
    kept = folder / f"{hashlib.sha256(os.fsencode(names)).hexdigest()[:_DIGITS]}.json"
    state = [[path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    found = {"files": state, "digest": hashlib.sha256(b"".join(files.values())).hexdigest()[:_DIGITS]}
    try:
        earlier = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = None
    if isinstance(earlier, dict) and earlier.get("files") == state and earlier != found:
        raise DataError(
            f"Prepared data in {os.path.commonpath([path.parent for path in files])} have changed on the disk: "
            "delete them, and they are prepared again."
        )
    if earlier != found:
        with suppress(DataError), atomic_write(kept) as temporary:  # of a cache that may only be read
            temporary.write_text(to_json(found), encoding="utf-8")


def _digest_file(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            if size <= _WHOLE_BYTES:
                return hashlib.file_digest(file, "sha256").digest()
            sampled = hashlib.sha256(str(size).encode())
            blocks = _WHOLE_BYTES // _BLOCK_BYTES
            for block in range(blocks):
                file.seek((size - _BLOCK_BYTES) * block // (blocks - 1))
                sampled.update(file.read(_BLOCK_BYTES))
            return sampled.digest()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): run the same command again to prepare it."
        ) from error
