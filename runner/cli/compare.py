"""The command `timetrial compare`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..core.errors import DataError
from ..core.found_files import UnreadableFile, make_visible
from .options import AsJson

if TYPE_CHECKING:
    from ..results.analysis.comparison import Comparison
    from ..results.analysis.external_comparison import ExternalComparison
    from ..results.analysis.findings import Finding
    from ..results.analysis.throughput_comparison import ThroughputComparison


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            help="Run directories, logs, tables of external measurements or folders of these, the baseline first; for "
            "tables also names of systems in them.",
            show_default=False,
        ),
    ],
    margin: Annotated[
        float, typer.Option(help="Relative difference up to which two sides are called equal.", metavar="FRACTION")
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Compare GPUs or settings with a baseline: the verdict on each, its confidence interval, what else differs.

    At most 5% of the calls call equal sides faster or slower, and at most 5% unequal ones equal, however many sides are
    compared. Of a table or a folder of tables, the systems are compared, or those that are named:
    timetrial compare t4_v100_2019.csv T4 V100. For example:
    timetrial compare runs/a runs/b runs/c
    """
    from ..results.analysis import findings
    from ..results.parse import external
    from ..results.report import folder_comparison

    paths = [Path(side) for side in sides if Path(side).exists()]
    names = [side for side in sides if not Path(side).exists()]
    tables = external.find_tables(paths)
    unreadable: list[UnreadableFile] = []
    if tables and (names or len(paths) < 2 or not all(map(_holds_runs, paths))):
        _compare_tables(tables, paths, names, unreadable, as_json=as_json)
        return
    if names:
        raise DataError(
            f"{make_visible(names[0])} does not exist: pass run directories, logs or tables of external measurements."
        )
    unreadable += [
        UnreadableFile(table, "the runs beside it are compared", "name the table itself as a side", "be compared")
        for table in tables
    ]
    notes: list[Finding] = []
    comparisons = folder_comparison.compare_folders(paths, margin, unreadable.append, notes.append)
    _print(comparisons, [*findings.list_unreadable(unreadable), *notes], as_json=as_json)


def _holds_runs(path: Path) -> bool:
    """Return whether there is a run or a throughput run at or below `path`."""
    from ..results.analysis import throughput_groups
    from ..results.parse import sources

    return bool(sources.read_runs([path], needed=False) or throughput_groups.read_throughput_groups([path]))


def _compare_tables(
    tables: Sequence[Path],
    paths: Sequence[Path],
    names: Sequence[str],
    unreadable: list[UnreadableFile],
    *,
    as_json: bool,
) -> None:
    """Compare the systems in tables, and those of own runs at the other paths; named tables must be readable."""
    from ..results.analysis import external_comparison, findings, own_measurements, throughput_groups
    from ..results.analysis.groups import group_runs
    from ..results.parse import external, sources

    named = [path for path in tables if path in paths]
    measurements = [entry for path in named for entry in external.read_measurements(path, unreadable.append)]
    measurements += external.read_tables([path for path in tables if path not in named], unreadable.append)
    if folders := [path for path in paths if path not in named]:
        measured = throughput_groups.read_throughput_groups(folders, unreadable.append)
        is_needed = not (measured or all(external.find_tables([path]) for path in folders))
        runs = sources.read_runs(folders, needed=is_needed, pass_over=unreadable.append)
        measurements += own_measurements.measure_throughput(own_measurements.split_by_run(measured))
        measurements += own_measurements.measure_runs(group_runs(runs))
    if not measurements:
        sources.require_results(paths, unreadable)
    comparisons = external_comparison.compare_systems(measurements, names)
    shown = [comparisons[0].baseline, *(pair.other for pair in comparisons)]
    compared = [entry for system in shown for entry in system.measurements]
    notes = [*findings.list_unreadable(unreadable), *findings.check_epochs(compared)]
    _print(comparisons, notes, as_json=as_json)


def _print(
    comparisons: "Sequence[Comparison | ThroughputComparison | ExternalComparison]",
    notes: "Sequence[Finding]",
    *,
    as_json: bool,
) -> None:
    from ..results.analysis.comparison import Comparison
    from ..results.analysis.throughput_comparison import ThroughputComparison
    from ..results.report import comparison_json, terminal, terminal_comparisons

    if as_json:
        print(json.dumps([comparison_json.to_json(pair) for pair in comparisons], indent=2))
        terminal.show_findings(Console(stderr=True), notes)
        return
    console = Console()
    num_tests = sum(isinstance(pair, Comparison) for pair in comparisons)
    for pair in comparisons:
        if isinstance(pair, Comparison):
            terminal_comparisons.show_comparison(console, pair, num_tests)
        elif isinstance(pair, ThroughputComparison):
            terminal_comparisons.show_throughput_comparison(console, pair)
        else:
            terminal_comparisons.show_external_comparison(console, pair)
    terminal.show_findings(console, notes)
