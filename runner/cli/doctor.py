"""The command `timetrial doctor`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .options import AsJson, DataDir


def doctor(
    runs_dir: Annotated[Path, typer.Option(help="Folder of the run directories.", metavar="FOLDER")] = Path("runs"),
    data_dir: DataDir = Path("data"),
    quick: Annotated[bool, typer.Option("--quick", help="Skip checks that take seconds: the all-reduce.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine is fit to run. Each line that says FAIL ends with the command that mends it.

    Exits with 22 if the GPU, PyTorch or the host is not fit, with 21 if only datasets are damaged, else with 0.
    """
    from ..benchmarks import doctor as examination

    checks = examination.examine(examination.look(), runs_dir, data_dir, sum_up=not quick)
    made = list(checks) if as_json else examination.show(Console(), checks)
    code = examination.verdict(made)
    if as_json:
        print(json.dumps({"exit_code": int(code), "checks": examination.as_table(made)}, indent=2))
    raise typer.Exit(int(code))
