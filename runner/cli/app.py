"""The commands of `timetrial`, one module each."""

import os
from typing import Annotated, Any

import typer

from ... import __version__
from ..core.console import QUIET_VARIABLE
from . import batch, data
from .accept import accept
from .check import check
from .compare import compare
from .doctor import doctor
from .estimate import estimate
from .inspect_data import inspect
from .list_recipes import list_recipes
from .new_workload import new_workload
from .options import HYDRA_CONTEXT
from .peaks import peaks
from .report import report
from .run import run
from .study import study
from .throughput import throughput

GLOBAL_OPTIONS = ("--version", "--quiet")
"""Options that may stand anywhere on the command line."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train MLPerf workloads to their target quality, log them, check the logs, and judge the results.",
)
_HYDRA_HELP: dict[str, Any] = HYDRA_CONTEXT | {"help_option_names": []}  # Hydra prints the help of these
app.command(context_settings=_HYDRA_HELP, options_metavar="")(run)
app.command(context_settings=_HYDRA_HELP, options_metavar="")(throughput)
app.command(context_settings=HYDRA_CONTEXT)(estimate)
app.command("list")(list_recipes)
for command in (doctor, accept, peaks, check, report, study, compare, new_workload):
    app.command()(command)
app.add_typer(batch.app, name="batch")
data.app.command()(inspect)
app.add_typer(data.app, name="data")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"timetrial {__version__}")
        raise typer.Exit


@app.callback()
def set_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results and errors only, no progress.")] = False,
) -> None:
    """Apply the options that all commands share; processes that the command starts follow the environment."""
    if quiet:
        os.environ[QUIET_VARIABLE] = "1"
