"""The command `timetrial check`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..core.errors import ConfigurationError, DataError, Exit
from ..core.found_files import make_visible
from .options import AsJson


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="LOGS...", help="MLPerf logs (v0.6 and later) or run directories.", show_default=False),
    ],
    ruleset: Annotated[
        str | None,
        typer.Option(help="Rules to judge by, such as 5.0.0; by default those of each log's round.", metavar="VERSION"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check MLPerf logs with the official checker, under the rules of their round, and explain every problem.

    The round is that of a folder such as v5.0 above the log, else the newest that knows the benchmark; logs of
    timetrial have the keys of v0.7. The log of a run without its target can comply; a stopped run is not judged. Exit
    code 40: a log does not comply.
    """
    from ..launch.result_table import format_verdict
    from ..mlperf import compliance, official_checker

    if ruleset and ruleset not in official_checker.rulesets():
        known = ", ".join(official_checker.rulesets())
        raise ConfigurationError(f"--ruleset {ruleset} is none of the official checker's rules: {known}.")

    console, exit_code, objects = Console(soft_wrap=True), Exit.TARGET_REACHED, []
    for path in _find_logs(paths):
        verdict = compliance.check(path, ruleset)
        objects.append({"log": str(path), **asdict(verdict)})
        if verdict.compliant is False:
            exit_code = Exit.NOT_COMPLIANT
        if not as_json:
            console.print(f"{escape(make_visible(str(path)))}: {format_verdict(verdict)}", highlight=False)
            for problem in verdict.problems:
                console.print(f"  - {make_visible(problem)}", markup=False)
    if as_json:
        print(json.dumps(objects, indent=2))
    raise typer.Exit(int(exit_code))


def _find_logs(paths: list[Path]) -> list[Path]:
    """Return the paths, with every folder replaced by the logs below it."""
    logs: list[Path] = []
    for path in paths:
        logs_at_path = sorted(path.rglob("result_*.txt")) if path.is_dir() else [path]
        if not logs_at_path or not logs_at_path[0].exists():
            raise DataError(
                f"{make_visible(str(path))} is not a log and contains none: "
                "name a result_*.txt file or a run directory."
            )
        logs += logs_at_path
    return logs
