"""The command `timetrial peaks`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..core.console import table_console
from .options import AsJson


def peaks(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(help="gemm, convolution, lstm, attention, copy, transfer, all-reduce.", show_default="all"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for peaks.json.", metavar="FOLDER", show_default="runs/<system>/peaks/<gpu>/<id>"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes and few repetitions: seconds, rough values.")
    ] = False,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", help="A config of conf/accelerator.", show_default="this machine's")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the peak rates of this machine's GPU: matrix products, convolutions, copies, all-reduce.

    Writes peaks.json, from which a report draws the roofline that measured workloads are placed under.
    """
    from ..benchmarks import peaks as benchmark

    document, path = benchmark.run(
        kinds or [], accelerator, out, quick=quick, console=None if as_json else table_console()
    )
    if as_json:
        print(json.dumps(document | {"path": str(path)}, indent=2))
