"""Folders that are there whole or not at all."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timetrial.runner.errors import DataError


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
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
