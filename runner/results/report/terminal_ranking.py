"""Terminal output of the rankings of published rounds."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.console import print_text, table_console
from ..analysis.ranking import Ranking
from .ranking_panel import ranking_table
from .systems import System


def show_rankings(console: Console, rankings: Sequence[Ranking], systems: Mapping[str, System]) -> None:
    """Print a table of each benchmark, the fastest system first; `systems` holds that of each group by its title."""
    for ranking in rankings:
        ranked = ranking_table("", ranking, systems)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for number, column in enumerate(ranked.columns):
            table.add_column(column, overflow="fold", justify="right" if number >= ranked.text_columns else "left")
        for row in ranked.rows:
            table.add_row(*map(Text, row))
        print_text(console, Text(f"{ranking.workload}, ranked", style="bold underline"))
        print_text(console, Text(f"{ranked.caption}."))
        table_console(console).print(table)
        console.print()
