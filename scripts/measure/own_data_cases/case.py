"""What a case is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Write = Callable[[Path], Path]

WORKS, MENDED, REFUSED = "works", "works, and it is said", "refused"


@dataclass(frozen=True)
class Case:
    """Data of a `kind` as people have them: `write(folder)` writes them and returns their path.

    `outcome` is what they should get, and `says` a part of what should be said about them.
    """

    kind: str
    title: str
    outcome: str
    says: str
    write: Write


def file(name: str, content: str | bytes) -> Write:
    """Return a function that writes one file."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
