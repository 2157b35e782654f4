"""The manifest of a dataset: the sizes and counts that a run needs before its clock starts.

`prepare_data` writes it, and constructing the data reads it and touches no file of the dataset.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runner.core.atomic_files import atomic_write, to_json
from ...runner.core.errors import DataError


def manifest_path(cache_dir: str, kind: str, *sources: Path) -> Path:
    """Return the path in `cache_dir` of what a data class of the name `kind` needs of the files or folders `sources`.

    It depends on their names alone.
    """
    key = "|".join([kind, *(os.path.abspath(source) for source in sources)])
    digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
    return Path(cache_dir) / f"{sources[0].stem}-{digest}.manifest.json"


def write_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Write `values` as JSON; raise `DataError` if they cannot be written."""
    with atomic_write(path) as temporary:
        temporary.write_text(to_json(values), encoding="utf-8")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the values that `write_manifest` has written; raise `DataError` if they are missing or damaged."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is missing or damaged: run timetrial data prepare with this run's overrides."
        ) from error
    return values
