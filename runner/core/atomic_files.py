"""Files and folders that are there whole or not at all."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import DataError


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """A new temporary folder that becomes `folder` at the end, or nothing; `DataError` if it cannot be written."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():  # else another run was faster, with the same bytes
                raise
    except OSError as error:
        raise DataError(f"Cannot write {folder} ({error.strerror}): free space there or set data_dir.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_write(path: Path, *, single_writer: bool = False) -> Iterator[Path]:
    """A new name beside `path` for a file that takes its place at the end, or nothing; errors as `atomic_directory`.

    Who is the `single_writer`, so that no other process writes that file, gets the name that it got last time: what a kill has left
    there is written over.
    """
    temporary = path.with_name(f"{path.name}.part" if single_writer else f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"Cannot write {path} ({error.strerror}): free space there or name another place.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
