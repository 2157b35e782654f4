"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .completion import complete_override

HYDRA_CONTEXT: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Typer settings of commands that pass their arguments on to Hydra."""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Overrides, as of timetrial run.",
        metavar="GROUP=NAME|KEY=VALUE",
        show_default=False,
        autocompletion=complete_override,
    ),
]
DataDir = Annotated[Path, typer.Option(help="Folder of the datasets.", metavar="FOLDER", envvar="TIMETRIAL_DATA_DIR")]
ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir",
        help="Folder with more configuration groups, as of Hydra.",
        metavar="FOLDER",
        envvar="TIMETRIAL_CONFIG_DIR",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
ResultPaths = Annotated[
    list[Path],
    typer.Argument(
        help="Run directories, published result trees, logs, tables of external measurements, or folders of these.",
        show_default=False,
    ),
]
