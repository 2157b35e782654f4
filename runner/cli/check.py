"""The command `timetrial check`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..core.errors import DataError, Exit


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="LOGS...", help="MLPerf logs (v0.7 and later) or run directories.", show_default=False),
    ],
) -> None:
    """Check MLPerf logs with the official checker, under the rules that apply to each, in plain words."""
    from ..mlperf import compliance

    console, all_compliant = Console(soft_wrap=True), True
    for path in _find_logs(paths):
        verdict = compliance.check(path)
        all_compliant &= verdict.compliant
        state = "[green]complies[/green]" if verdict.compliant else "[red]does not comply[/red]"
        console.print(f"{escape(str(path))}: {state} ({verdict.rules})")
        for problem in verdict.problems:
            console.print(f"  - {problem}", markup=False)
    raise typer.Exit(int(Exit.TARGET_REACHED if all_compliant else Exit.NOT_COMPLIANT))


def _find_logs(paths: list[Path]) -> list[Path]:
    """Return the paths, with every folder replaced by the logs below it."""
    logs: list[Path] = []
    for path in paths:
        found = sorted(path.rglob("result_*.txt")) if path.is_dir() else [path]
        if not found or not found[0].exists():
            raise DataError(f"{path} is no log and holds none: name a result_*.txt file or a run directory.")
        logs += found
    return logs
