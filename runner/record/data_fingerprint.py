"""The digest that says which data a run trained on."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ..core.errors import DataError

_BLOCK_BYTES = 1 << 20
_WHOLE_BYTES = 64 * _BLOCK_BYTES  # larger files are sampled
_DIGITS = 16


def digest(content: Iterable[Path | bytes]) -> str | None:
    """Return 16 hexadecimal digits for what preparation stored, in its order; None if there is nothing.

    Equal content gives equal digits, wherever the files lie. Of a file above 64 MiB, its size and 64 evenly spaced
    blocks of 1 MiB count. Raises `DataError` for a file that cannot be read.
    """
    parts = [_digest_file(part) if isinstance(part, Path) else hashlib.sha256(part).digest() for part in content]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:_DIGITS] if parts else None


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
