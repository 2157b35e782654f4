"""File names of generated datasets."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any


def path_with_digest(path: Path, spec: Any) -> Path:
    """Return `path` with a digest of the dataclass `spec` in its name, so that each dataset has a path of its own."""
    digest = hashlib.sha256(repr(sorted(asdict(spec).items())).encode()).hexdigest()[:8]
    return path.with_name(f"{path.stem}-{digest}{path.suffix}")
