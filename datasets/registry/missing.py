"""The error for data that are missing: it names the command that fetches them."""

import shlex
from pathlib import Path

from ...runner.core.errors import DataError
from . import catalog


def missing_data(path: Path, alternative: str, problem: str = "is missing") -> DataError:
    """Return the error for `path`: fetch the dataset that it belongs to, if there is one, or else the alternative."""
    command = fetch_command(path)
    remedy = f"run {command}, or {alternative}" if command else alternative
    return DataError(f"{path} {problem}: {remedy}.")


def fetch_command(path: Path) -> str | None:
    """Return the command that fetches the dataset of the file, None if no folder on its path is named as a dataset."""
    known = catalog.read()
    folder = next((folder for folder in (path, *path.parents) if folder.name in known), None)
    if folder is None:
        return None
    options = "" if folder.parent == Path("data") else f" --data-dir {shlex.quote(str(folder.parent))}"
    return f"timetrial data fetch {folder.name}{options}"
