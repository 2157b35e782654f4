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
    paths: Annotated[
        bool, typer.Option("--paths", help="Print what runs on the GPUs of each vendor instead, and check nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine is fit to run. Each line that says FAIL ends with the command that mends it.

    Exits with 22 if the GPU, PyTorch or the host is not fit, with 21 if only datasets are damaged, else with 0.
    """
    if paths:
        from ..hardware import vendor_paths

        print(json.dumps(vendor_paths.to_json(), indent=2) if as_json else vendor_paths.to_text())
        return
    from ..benchmarks import doctor as checks
    from ..benchmarks.gpu_checks import inspect_machine

    pending = checks.run_checks(inspect_machine(), runs_dir, data_dir, with_all_reduce=not quick)
    results = list(pending) if as_json else checks.show(Console(), pending)
    exit_code = checks.exit_code(results)
    if as_json:
        print(json.dumps({"exit_code": int(exit_code), "checks": checks.to_json(results)}, indent=2))
    raise typer.Exit(int(exit_code))
