"""The command `timetrial compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.errors import ConfigurationError, DataError
from ..core.found_files import UnreadableFile, make_visible
from .options import AsJson


def compare(
    baseline: Annotated[Path, typer.Argument(help="Run directories or logs of the baseline.", show_default=False)],
    others: Annotated[list[Path], typer.Argument(help="Those of each other side.", show_default=False)],
    margin: Annotated[
        float, typer.Option(help="Relative difference up to which two sides are called equal.", metavar="FRACTION")
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Compare GPUs or settings with a baseline: the verdict on each, its confidence interval, what else differs.

    At most 5% of the calls give a false verdict, however many sides are compared.
    """
    from ..results.analysis import comparison, findings, throughput_groups
    from ..results.analysis.groups import group_runs
    from ..results.parse import sources
    from ..results.report import terminal

    if not 0 < margin < 1:
        raise ConfigurationError(f"--margin {margin:g} is no fraction between 0 and 1: pass 0.05 for 5%.")
    console = Console()
    unreadable: list[UnreadableFile] = []
    throughput = [throughput_groups.read_throughput_groups([path], unreadable.append) for path in (baseline, *others)]
    groups = [
        group_runs(sources.read_runs([path], needed=not measured, pass_over=unreadable.append))
        for path, measured in zip((baseline, *others), throughput, strict=True)
    ]
    pairs = [(a, b) for side in groups[1:] for a in groups[0] for b in side if a.benchmark == b.benchmark]
    throughput_pairs = throughput_groups.compare_closest(
        throughput[0], [group for side in throughput[1:] for group in side]
    )
    if not pairs and not throughput_pairs:
        names = make_visible(f"{', '.join(map(str, others))} and {baseline}")
        raise DataError(f"{names} have no benchmark in common: nothing to compare.")
    comparisons = comparison.compare_all(pairs, margin)
    if as_json:
        pairs_as_json = [pair.to_json() for pair in comparisons] + [pair.to_json() for pair in throughput_pairs]
        print(json.dumps(pairs_as_json, indent=2))
        return
    terminal.show_findings(console, findings.list_unreadable(unreadable))
    for pair in comparisons:
        terminal.show_comparison(console, pair, len(comparisons))
    for throughput_pair in throughput_pairs:
        terminal.show_throughput_comparison(console, throughput_pair)
