"""Copy the folders that training reads to a node-local disk before the clock starts.

Single files are read once, before the clock; folders (images, shards) are read on it. Only folders are staged, and the
cache directory stays where all nodes share it.
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

from ..config.schema import Config
from ..config.validation import build_settings
from ..core.atomic_files import open_lock, replace_on_success, write_atomically, write_failure
from ..core.errors import ConfigurationError, DiskFull, HardwareError
from ..record.run_record import Staging

_THREADS = 16  # a shared file system answers many at once
_CHUNK_BYTES = 1 << 22
_Files = dict[str, tuple[int, int]]  # name below the folder -> size in bytes, time of change in nanoseconds


def stage(recipe_data: dict[str, Any], data_dir: Path, disk: Path, console: Console) -> Staging:
    """Copy what is not yet on `disk`. Runs on one node take turns."""
    started, copied = time.monotonic(), 0
    for source in sorted(_folders(recipe_data, data_dir)):
        copied += _copy_folder(source, disk / source.relative_to(data_dir), console)
    return Staging(bytes=copied, seconds=time.monotonic() - started)


def data_settings(config: Config, data_class: type) -> Any:
    """Return the recipe's data settings for `data_class`, with staged copies in place of their sources."""
    data = config.recipe.data
    if config.staging_dir is not None:
        data = with_staged_folders(data, Path(config.data_dir), Path(config.staging_dir))
    return build_settings(data_class, data, "recipe.data")


def with_staged_folders(value: Any, data_dir: Path, disk: Path) -> Any:
    """Return `value`, a recipe's data or a part of it, with the staged copy in place of every copied folder."""
    if isinstance(value, dict):
        return {key: with_staged_folders(entry, data_dir, disk) for key, entry in value.items()}
    if isinstance(value, list):
        return [with_staged_folders(entry, data_dir, disk) for entry in value]
    if isinstance(value, str) and data_dir in Path(value).parents:
        copy = disk / Path(value).relative_to(data_dir)
        return str(copy) if _digest_file(copy).exists() else value
    return value


def _folders(recipe_data: Any, data_dir: Path) -> Iterator[Path]:
    """Yield the folders below `data_dir` that the recipe reads."""
    if isinstance(recipe_data, dict):
        for key, entry in recipe_data.items():
            yield from _folders(entry, data_dir) if key != "cache_dir" else ()
    elif isinstance(recipe_data, str) and data_dir in Path(recipe_data).parents and Path(recipe_data).is_dir():
        yield Path(recipe_data)


def _digest_file(copy: Path) -> Path:
    """Return the file beside a staged folder that holds a digest of its contents."""
    return copy.with_name(f".{copy.name}.staged")


def _copy_folder(source: Path, copy: Path, console: Console) -> int:
    """Make `copy` equal to `source` file by file; return the bytes that had to be copied.

    Raises `ConfigurationError` if `copy` holds files of the user's: the lock file beside a copy marks it as our own.
    """
    digest_file, lock_file, files = _digest_file(copy), copy.with_name(f".{copy.name}.lock"), _listed(source)
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    try:
        copy.mkdir(parents=True, exist_ok=True)
        if copy.is_symlink() or (any(copy.iterdir()) and not lock_file.exists()):
            raise ConfigurationError(
                f"{copy} holds files that were not copied by timetrial, and would be replaced: "
                "name another staging_dir."
            )
        with open_lock(lock_file) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if digest_file.exists() and digest_file.read_text() == digest:
                return 0
            digest_file.unlink(missing_ok=True)
            present = _listed(copy)
            missing = {name: stamp for name, stamp in files.items() if present.get(name) != stamp}
            size = sum(bytes_ for bytes_, _ in missing.values())
            free = shutil.disk_usage(copy).free
            if size > free:
                raise DiskFull(
                    f"{source} needs {size / 1e9:.1f} GB and {copy} has {free / 1e9:.1f} GB free: "
                    "free space there, or leave staging_dir out."
                )
            console.print(
                f"copying {len(missing):,} files, {size / 1e9:.2f} GB, from {source} to {copy}",
                soft_wrap=True,
                markup=False,
            )
            for name in present.keys() - files.keys():
                (copy / name).unlink()
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda name: _copy_file(source / name, copy / name), missing))
            write_atomically(digest_file, digest)
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
    """Copy one file with its modification time, completely or not at all, and verify it by reading it back."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with replace_on_success(copy) as temporary:
        written = hashlib.sha256()
        with open(source, "rb") as reading, open(temporary, "wb") as writing:
            while chunk := reading.read(_CHUNK_BYTES):
                written.update(chunk)
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())
            if hasattr(os, "posix_fadvise"):  # read back from the disk, not from the page cache
                os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with open(temporary, "rb") as file:
            if hashlib.file_digest(file, "sha256").digest() != written.digest():
                raise HardwareError(f"{copy} does not hold what was written: exclude this node and run again.")
        stat = source.stat()
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
