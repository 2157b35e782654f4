"""The command `timetrial report`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .options import AsJson, ResultPaths

if TYPE_CHECKING:
    from ..results.analysis.groups import RunGroup
    from ..results.parse.runs import Run


def report(
    context: typer.Context,
    paths: ResultPaths,
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.md and csv/.")] = Path("report"),
    baseline: Annotated[
        str,
        typer.Option(
            help="Compare with the GPUs whose name has TEXT, such as '8 x A100', or with the system TEXT; default: the "
            "one with most benchmarks in common.",
            metavar="TEXT",
            show_default=False,
        ),
    ] = "",
    published: Annotated[
        bool, typer.Option("--published", help="List MLPerf's published results of the same benchmarks too.")
    ] = False,
    runs_csv: Annotated[Path | None, typer.Option(help="Write one row per log to FILE.", metavar="FILE")] = None,
    scores_csv: Annotated[
        Path | None, typer.Option(help="Write one row per system and benchmark to FILE.", metavar="FILE")
    ] = None,
    export_mlperf: Annotated[
        Path | None, typer.Option(help="Copy the runs to DIR in the layout that MLPerf's tools read.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge any mix of results on one page, report.html: which GPU is faster, by how much, and whether that is luck.

    report.md and csv/ hold the same as text.

    With --json, --runs-csv, --scores-csv or --export-mlperf only what they name is written, unless --out is given too.
    """
    from ..results.analysis.groups import group_runs
    from ..results.parse import sources
    from ..results.report import build as reports

    console = Console(soft_wrap=True, highlight=False, stderr=as_json)
    outputs = [path for path in (runs_csv, scores_csv, export_mlperf) if path]
    out_source = context.get_parameter_source("out")
    wants_page = not (outputs or as_json) or (out_source is not None and out_source.name == "COMMANDLINE")
    is_judged = wants_page or as_json
    built = reports.build_report(paths, baseline, published=published) if is_judged else reports.Report([])
    if outputs:
        runs = built.runs or sources.read_runs(paths, pass_over=built.unreadable.append)
        groups = built.groups or group_runs(runs)
        _write_outputs(runs, groups, runs_csv, scores_csv, export_mlperf)
        written = ", ".join(map(str, outputs))
        console.print(f"logs: {len(runs)}, run groups: {len(groups)}; wrote {written}", markup=False)
    for error in built.unreadable:
        console.print(f"passed over: {error}", markup=False)
    if as_json:
        from ..results.report.report_json import report_to_json

        print(json.dumps(report_to_json(built), indent=2))
    if wants_page:
        from ..results.report import page

        page_path = page.write_page(built, out, baseline)
        counts = f"runs: {len(built.runs)}, run groups: {len(built.groups)}"
        counts += f", throughput groups: {len(built.throughput_groups)}"
        counts += f", external measurements: {len(built.external_measurements)}"
        console.print(f"{counts}; wrote {page_path}", markup=False)


def _write_outputs(
    runs: "Sequence[Run]",
    groups: "Sequence[RunGroup]",
    runs_csv: Path | None,
    scores_csv: Path | None,
    export_mlperf: Path | None,
) -> None:
    """Write the files and the folder that are named."""
    from ..results.report import csv_tables, mlperf_export

    if runs_csv:
        csv_tables.write_runs(runs_csv, runs)
    if scores_csv:
        csv_tables.write_scores(scores_csv, groups)
    if export_mlperf:
        mlperf_export.export(groups, export_mlperf)
