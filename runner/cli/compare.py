"""The command `timetrial compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.errors import DataError


def compare(
    first: Annotated[Path, typer.Argument(help="Run directories or logs of one side.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Those of the other side.", show_default=False)],
) -> None:
    """Compare two GPUs or settings: what differs, the ratios with their confidence intervals, the verdict."""
    from ..results.analysis import comparison, throughput_groups
    from ..results.analysis.groups import group_runs
    from ..results.parse import sources
    from ..results.report import terminal

    console = Console()
    measurements = [throughput_groups.read_throughput_groups([path]) for path in (first, second)]
    throughput = [of_side for of_side, _ in measurements]
    terminal.show_findings(console, [finding for _, damaged in measurements for finding in damaged])
    groups = [
        group_runs(sources.read_runs([path], needed=not measured))
        for path, measured in zip((first, second), throughput, strict=True)
    ]
    pairs = [(a, b) for a in groups[0] for b in groups[1] if a.benchmark == b.benchmark]
    throughput_pairs = throughput_groups.compare_closest(*throughput)
    if not pairs and not throughput_pairs:
        raise DataError(f"{first} and {second} have no benchmark in common: there is nothing to compare.")
    for a, b in pairs:
        terminal.show_comparison(console, comparison.compare(a, b))
    for pair in throughput_pairs:
        terminal.show_throughput_comparison(console, pair)
