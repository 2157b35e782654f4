"""A page of a verdict and some tables, in the style of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .... import __version__
from ...core.atomic_files import write_atomically
from .templates import load_template

GOOD, BAD, CAUTION, MUTED = "faster", "slower", "caution", "none"
"""Tones of a cell: classes of the style."""


@dataclass(frozen=True)
class Cell:
    """A text of a table in a tone, with smaller text below it."""

    text: str
    tone: str = ""
    detail: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table whose first column names the rows; columns from `first_number` on hold numbers.

    A folded table opens with a click.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    first_number: int = 99
    caption: str = ""
    is_folded: bool = False


def write_table_page(
    path: Path, title: str, lead: str, verdict: Cell, tables: Sequence[PageTable], facts: Mapping[str, str]
) -> Path:
    """Write a page that needs no other file, without tables that have no rows, and return its path."""
    context = {
        "title": title,
        "lead": lead,
        "written": f"Written on {datetime.now(UTC):%Y-%m-%d} by timetrial {__version__}.",
        "verdict": verdict,
        "tables": [table for table in tables if table.rows],
        "facts": facts,
    }
    write_atomically(path, load_template("table_page.html.j2").render(context))
    return path
