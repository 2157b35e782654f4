"""Token shards: the binary format in which text encoded with GPT-2's vocabulary is published.

A file has a header of 256 int32 (a magic number, the version 1 and the number of tokens, then zeros) and one uint16 for
each token, little endian.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError
from ..registry.missing import missing_data

SUFFIX = ".bin"
_MAGIC, _VERSION = 20240520, 1
_HEADER_INTEGERS = 256
_HEADER_BYTES = 4 * _HEADER_INTEGERS


def count(path: Path) -> int:
    """Return the number of tokens; raises `DataError` for a file that is missing, truncated or of another format."""
    if not path.is_file():
        raise missing_data(path, "name your shards in recipe.data")
    header = np.fromfile(path, "<i4", _HEADER_INTEGERS)
    if len(header) < _HEADER_INTEGERS or (header[0], header[1]) != (_MAGIC, _VERSION):
        raise DataError(f"{path} is no token shard of version {_VERSION}: fetch it again, or give text another suffix.")
    size = path.stat().st_size
    if size != _HEADER_BYTES + 2 * int(header[2]):
        raise DataError(f"{path} has {size} bytes, which are not those of its {header[2]} tokens: fetch it again.")
    return int(header[2])


def read(path: Path) -> NDArray[np.uint16]:
    """Return the tokens as a view of the file, which must not change; raises as `count` does."""
    return np.memmap(path, "<u2", "r", _HEADER_BYTES, (count(path),))


def write(path: Path, ids: Sequence[int] | NDArray[np.integer]) -> None:
    """Write token ids below 65,536."""
    tokens = np.asarray(ids)
    header = np.zeros(_HEADER_INTEGERS, "<i4")
    header[:3] = _MAGIC, _VERSION, len(tokens)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(tokens.astype("<u2").tobytes())
