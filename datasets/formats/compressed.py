"""Opening of files that may be compressed."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OPENERS: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}

# Raised when a truncated or damaged file is read.
READ_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error)


def open_compressed(path: Path, mode: str, **options: Any) -> Any:
    """Open `path` (.bz2, .gz, .xz or uncompressed) for reading, as `open` does."""
    return _OPENERS.get(path.suffix, open)(path, mode, **options)
