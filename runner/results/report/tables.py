"""A table of the report page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MAX_ROWS = 24  # of a table that is not collapsed


@dataclass(frozen=True)
class Table:
    """A table as shown, and the rows of its CSV file `<name>.csv`; the first `text_columns` columns hold text."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, Any]]
    text_columns: int = 1

    @property
    def is_collapsed(self) -> bool:
        """True for a long table, which is hidden until the reader opens it."""
        return len(self.rows) > _MAX_ROWS
