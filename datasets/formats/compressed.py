"""Files that may be compressed, opened by their suffix."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OPENERS: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}

# What reading one that is cut short or damaged raises.
UNREADABLE = (EOFError, OSError, lzma.LZMAError, zlib.error)


def opened(path: Path, mode: str, **options: Any) -> Any:
    """`path` (.bz2, .gz, .xz or plain) opened for reading, as `open` does."""
    return _OPENERS.get(path.suffix, open)(path, mode, **options)
