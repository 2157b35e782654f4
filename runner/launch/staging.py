"""Folders that training reads again and again, copied to a disk of the node's own before the clock starts.

What lies in files is read once, before the clock; what lies in folders (images, shards) is read on it. `stage` is
therefore about folders alone, and `prepared` stays where all nodes share it.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.atomic_files import replace_on_success, write_atomically, write_failure
from ..core.errors import HardwareError, RunError

_THREADS = 16  # a shared file system answers many at once
_CHUNK_BYTES = 1 << 22
_Files = dict[str, tuple[int, int]]  # name below the folder -> size in bytes, time of change in nanoseconds


def stage(recipe_data: dict[str, Any], data_dir: Path, disk: Path, console: Console) -> dict[str, float]:
    """Copies what is not yet on `disk`; returns bytes and seconds. Runs on one node take turns."""
    started, copied = time.monotonic(), 0
    for source in sorted(_folders(recipe_data, data_dir)):
        copied += _copy_folder(source, disk / source.relative_to(data_dir), console)
    return {"bytes": copied, "seconds": time.monotonic() - started}


def staged(value: Any, data_dir: Path, disk: Path) -> Any:
    """`value`, a recipe's data or a part of them, with every folder that has been copied in place of its source."""
    if isinstance(value, dict):
        return {key: staged(entry, data_dir, disk) for key, entry in value.items()}
    if isinstance(value, list):
        return [staged(entry, data_dir, disk) for entry in value]
    if isinstance(value, str) and data_dir in Path(value).parents:
        copy = disk / Path(value).relative_to(data_dir)
        return str(copy) if _record(copy).exists() else value
    return value


def _folders(recipe_data: Any, data_dir: Path) -> Iterator[Path]:
    """Folders below `data_dir` that the recipe names, but for the one that it writes to."""
    if isinstance(recipe_data, dict):
        for key, entry in recipe_data.items():
            yield from _folders(entry, data_dir) if key != "prepared" else ()
    elif isinstance(recipe_data, str) and data_dir in Path(recipe_data).parents and Path(recipe_data).is_dir():
        yield Path(recipe_data)


def _record(copy: Path) -> Path:
    """Beside a folder that has been copied: a digest of what was in it."""
    return copy.with_name(f".{copy.name}.staged")


def _copy_folder(source: Path, copy: Path, console: Console) -> int:
    """Makes `copy` equal to `source`, file by file; returns the bytes that had to be copied."""
    record, files = _record(copy), _listed(source)
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    try:
        copy.mkdir(parents=True, exist_ok=True)
        with open(copy.with_name(f".{copy.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if record.exists() and record.read_text() == digest:
                return 0
            record.unlink(missing_ok=True)
            present = _listed(copy)
            wanted = {name: what for name, what in files.items() if present.get(name) != what}
            size = sum(bytes_ for bytes_, _ in wanted.values())
            free = shutil.disk_usage(copy).free
            if size > free:
                raise RunError(
                    f"{source} wants {size / 1e9:.1f} GB and {copy} has {free / 1e9:.1f} GB free: "
                    "free space there, or leave staging_dir= out."
                )
            console.print(
                f"copying {len(wanted):,} files, {size / 1e9:.2f} GB, from {source} to {copy}", soft_wrap=True
            )
            for name in present.keys() - files.keys():
                (copy / name).unlink()
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda name: _copy_file(source / name, copy / name), wanted))
            write_atomically(record, digest)
            return size
    except OSError as error:
        raise write_failure(copy, error) from error


def _listed(folder: Path) -> _Files:
    found: _Files = {}
    for path, _, names in os.walk(folder, followlinks=True):
        for name in names:
            stat = os.stat(os.path.join(path, name))
            found[os.path.relpath(os.path.join(path, name), folder)] = (stat.st_size, stat.st_mtime_ns)
    return found


def _copy_file(source: Path, copy: Path) -> None:
    """Copies one file with its time of change, whole or not at all, and reads it back."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with replace_on_success(copy) as temporary:
        written = hashlib.sha256()
        with open(source, "rb") as reading, open(temporary, "wb") as writing:
            while chunk := reading.read(_CHUNK_BYTES):
                written.update(chunk)
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())
            if hasattr(os, "posix_fadvise"):  # so that the disk is read, and not what the system still remembers
                os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with open(temporary, "rb") as file:
            if hashlib.file_digest(file, "sha256").digest() != written.digest():
                raise HardwareError(f"{copy} does not hold what was written: exclude this node and run again.")
        stat = source.stat()
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
