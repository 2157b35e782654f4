"""Files and folders that appear complete or not at all, by temporary name and rename."""

import errno
import glob
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeGuard

import psutil

from .errors import ConfigurationError, DataError, DiskFull, RunError

_SHOWN_LETTERS = 80  # of a path that is too long
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_STALE_PAUSES = (0.05, 0.2, 1.0)  # seconds between attempts to rename a file whose network handle is stale


@contextmanager
def replace_on_success(path: Path, *, single_writer: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces `path` when the body succeeds and is removed when it fails.

    With `single_writer`, the temporary name is fixed, so that the next call overwrites what a killed process left.
    `OSError` is passed on.
    """
    name = f"{path.name}.part" if single_writer else f".{path.name}.{secrets.token_hex(4)}.tmp"
    temporary = path.with_name(name)
    try:
        yield temporary
        _rename(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _rename(temporary: Path, path: Path) -> None:
    """Rename a file; where a network file system answers with a stale handle, look it up again."""
    for pause in _STALE_PAUSES:
        try:
            temporary.replace(path)
            return
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            time.sleep(pause)
    temporary.replace(path)


def write_atomically(path: Path, text: str | bytes, *, durable: bool = True) -> None:
    """Write `path` as a whole; a reader never sees half of it. Raises `RunError` if it cannot be written.

    `durable` flushes the file to disk. Turn it off for files that are rewritten often while the clock runs.
    """
    try:
        with replace_on_success(path) as temporary, open(temporary, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        raise write_failure(path, error) from error


def open_lock(path: Path) -> IO[bytes]:
    """Open a lock file, which is created if absent and never changed; raises `OSError` for a link.

    Whoever may only read it can still see whether it is locked.
    """
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666), "r+b")
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or not os.path.exists(path):
            raise
        return os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")


def write_failure(
    path: Path | str, error: OSError, remedy: str = "choose another place", kind: type[RunError] = RunError
) -> RunError:
    """Return the error for a file that cannot be written: `DiskFull` where space is missing, else one of `kind`."""
    if is_disk_full(error):
        kind, remedy = DiskFull, f"free space there or {remedy}"
    return kind(f"Cannot write {path} ({error.strerror or error}): {remedy}.")


def is_disk_full(error: BaseException) -> TypeGuard[OSError]:
    """Return whether the disk, or the user's quota on it, has no space left."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


@contextmanager
def file_errors_as_run_errors() -> Iterator[None]:
    """Raise a `RunError` in place of an `OSError` for a full disk or a long name, for bodies that write many files."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            path = max(str(error.filename or "a file"), str(error.filename2 or ""), key=len)
            raise ConfigurationError(
                f"Cannot use {path[:_SHOWN_LETTERS]}... ({error.strerror}): choose a shorter name."
            ) from error
        if not is_disk_full(error):
            raise
        raise write_failure(error.filename2 or error.filename or "a file", error) from error


def to_json(value: Any) -> str:
    """Return `value` as indented JSON text with a final newline."""
    return json.dumps(value, indent=2) + "\n"


@contextmanager
def atomic_write(path: Path, *, single_writer: bool = False) -> Iterator[Path]:
    """Yield a temporary path for a data file, as `replace_on_success` does, and create the folder of `path`.

    Raises `DiskFull` or `DataError` if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_on_success(path, single_writer=single_writer) as temporary:
            yield temporary
    except OSError as error:
        raise write_failure(path, error, "name another place", DataError) from error


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """Yield a new temporary folder that becomes `folder` when the body succeeds and is removed when it fails.

    If another process creates `folder` in the meantime, its folder is kept. Raises `DiskFull` or `DataError` if it
    cannot be written.
    """
    prefix = f".{folder.name}.{platform.node()}"
    temporary = folder.with_name(f"{prefix}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        _remove_leftovers(folder.parent, prefix)
        temporary.mkdir(parents=True)
        yield temporary
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    except OSError as error:
        raise write_failure(folder, error, "set data_dir", DataError) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove temporary folders of processes of this host that were killed."""
    for leftover in parent.glob(f"{glob.escape(prefix)}.*.tmp"):
        pid = leftover.name.removeprefix(f"{prefix}.").split(".")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(leftover, ignore_errors=True)
