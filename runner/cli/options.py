"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

HYDRA_CONTEXT: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Typer settings of commands that pass their arguments on to Hydra."""

DataDir = Annotated[Path, typer.Option(help="Folder of the datasets.", metavar="FOLDER")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
ResultPaths = Annotated[
    list[Path],
    typer.Argument(
        help="Run directories, published result trees, logs, tables of external measurements.", show_default=False
    ),
]
