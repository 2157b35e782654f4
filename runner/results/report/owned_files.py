"""The files that reports have written to a folder: a report replaces and removes these, and none of the user's."""

import re
from contextlib import suppress
from pathlib import Path

from ...core.atomic_files import write_atomically, write_failure
from ...core.errors import ConfigurationError
from ...core.found_files import UnreadableFile, read_text

LIST = ".report_files"  # in the folder: one name a line
_NAME = re.compile(r"report\.(md|html)|csv/\w[\w.-]*\.csv", re.ASCII)  # what a list may name, whoever wrote it


class OwnedFiles:
    """The files in `folder` that this report writes, and those of the reports before it.

    Raises `ConfigurationError` if a file of the user's, or a link, is where a file of the report belongs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._earlier: set[str] = set()
        self._claimed: set[str] = set()
        if (folder / "csv").is_symlink():
            raise self._in_the_way("csv")
        if (folder / LIST).exists():
            with suppress(UnreadableFile):
                self._earlier = set(filter(_NAME.fullmatch, read_text(folder / LIST).splitlines()))

    def claim(self, name: str) -> Path:
        """Return the path to write `name` to."""
        path = self._folder / name
        if path.is_symlink() or (path.exists() and name not in self._earlier):
            raise self._in_the_way(name)
        if name not in self._claimed:
            self._claimed.add(name)
            self._write_list(self._earlier | self._claimed)  # before the file: a report that is killed still owns it
        return path

    def remove_others(self) -> None:
        """Remove the files of earlier reports that this one has not written."""
        for name in self._earlier - self._claimed:
            path = self._folder / name
            if path.is_file() and not path.is_symlink():
                path.unlink()
        self._write_list(self._claimed)

    def _write_list(self, names: set[str]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(self._folder, error) from error
        write_atomically(self._folder / LIST, "".join(f"{name}\n" for name in sorted(names)), durable=False)

    def _in_the_way(self, name: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._folder / name} is not a file of an earlier report: move it, or name another folder with --out."
        )
