"""A table of the report page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ROWS = 8  # that are shown without a click


@dataclass(frozen=True)
class Table:
    """A table as shown, and the rows of its CSV file `<name>.csv`; the first `text_columns` columns hold text.

    `series` is the place of each row in the charts beside the table, which serves as their legend; None is not drawn.
    `gpus` is what the filter matches, and `anchors` is where the names of the rows lead.
    """

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, Any]]
    text_columns: int = 1
    series: Sequence[int | None] = ()
    gpus: Sequence[str] = ()
    anchors: Sequence[str] = ()
