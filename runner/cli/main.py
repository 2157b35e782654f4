"""The command `timetrial`: one module per command, and one way to end with an error."""

import sys
from typing import Any

import typer

from ..core.atomic_files import disk_full_as_run_error
from ..core.console import flush_output, survive_output_errors
from ..core.errors import Exit, RunError
from ..core.signals import stop_early
from . import batch, data
from .check import check
from .compare import compare
from .doctor import doctor
from .estimate import estimate
from .list_recipes import list_recipes
from .options import HYDRA_CONTEXT
from .peaks import peaks
from .report import report
from .run import run, throughput
from .study import study

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train MLPerf workloads to their target quality, log them, check the logs, and judge the results.",
)
_USAGE_ERROR = 2  # of Typer, which has said what is wrong with an argument
_HYDRA_HELP: dict[str, Any] = HYDRA_CONTEXT | {"help_option_names": []}  # Hydra prints the help of these
app.command(context_settings=_HYDRA_HELP, options_metavar="")(run)
app.command(context_settings=_HYDRA_HELP, options_metavar="")(throughput)
app.command(context_settings=HYDRA_CONTEXT, options_metavar="[GROUP=NAME | KEY=VALUE] ...")(estimate)
app.command("list")(list_recipes)
for command in (doctor, peaks, check, report, study, compare):
    app.command()(command)
app.add_typer(batch.app, name="batch")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; an error is one sentence on stderr and its documented exit code."""
    survive_output_errors()
    with stop_early(ignore_after=True):  # until training handles the signals
        sys.exit(flush_output(_run_command()))


def _run_command() -> int:
    """Run the command of sys.argv and return its exit code."""
    try:
        with disk_full_as_run_error():
            app()
        return int(Exit.TARGET_REACHED)
    except SystemExit as end:
        code = int(end.code or 0)
        return int(Exit.CONFIGURATION) if code == _USAGE_ERROR else code
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Print an expected error and return its exit code; raise any other, which is a defect."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from rich.console import Console

    from ..core.error_messages import format_error

    if not isinstance(error, (RunError, HydraException, OmegaConfBaseException)):
        raise error
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"timetrial: {format_error(error)}", markup=False, highlight=False)
    return int(getattr(error, "exit_code", Exit.CONFIGURATION))


if __name__ == "__main__":
    main()
