"""The command `timetrial study`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from .options import AsJson, ResultPaths


def study(
    paths: ResultPaths,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say how many runs a difference needs, and whether a study may stop now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Summarize repeated runs: scores, confidence intervals, failures, one number a GPU; measured throughput.

    Rank the systems of a published round by MLPerf's score, and say which leads are beyond luck.

    For tables of external measurements, print the figures and the findings about them.
    """
    from ..results.analysis import findings
    from ..results.report import build as reports
    from ..results.report import study_json, terminal, terminal_ranking

    console, built = Console(), reports.build_report(paths)
    if as_json:
        groups = study_json.groups_to_json(built.groups, built.rankings)
        print(json.dumps(groups + [asdict(entry) for entry in built.measurements], indent=2))
        terminal.show_findings(Console(stderr=True), findings.list_unreadable(built.unreadable))
        return
    if plan:
        terminal.show_plan(console, built.groups, built.comparisons)
        return
    terminal.show_run_groups(console, built.groups)
    terminal_ranking.show_rankings(console, built.rankings, built.systems)
    terminal.show_scores(console, built.scores, built.profiles)
    terminal.show_throughput(console, built.throughput_groups)
    terminal.show_measurements(console, built.external_measurements)
    terminal.show_findings(console, built.findings)
