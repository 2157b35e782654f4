"""The command `timetrial`: one module per command, and one way to end with an error."""

import signal
import sys
from types import FrameType
from typing import Any

import typer

from ..core.errors import Exit, RunError
from ..core.signals import STOP_SIGNALS, ignore_stop_signals
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
_HYDRA_HELP: dict[str, Any] = HYDRA_CONTEXT | {"help_option_names": []}  # Hydra prints the help of these
app.command(context_settings=_HYDRA_HELP, options_metavar="")(run)
app.command(context_settings=_HYDRA_HELP, options_metavar="")(throughput)
app.command(context_settings=HYDRA_CONTEXT, options_metavar="[GROUP=NAME | KEY=VALUE] ...")(estimate)
app.command("list")(list_recipes)
for command in (doctor, peaks, check, report, study, compare):
    app.command()(command)
app.add_typer(batch.app, name="batch")
app.add_typer(data.app, name="data")


class _StoppedEarly(SystemExit):
    """No `Stopped`, because Hydra's composition catches every Exception."""

    exit_code = Exit.STOPPED

    def __str__(self) -> str:
        return "Stopped before training began: run it again."


def _stop_early(number: int, frame: FrameType | None) -> None:
    ignore_stop_signals()
    print(f"timetrial: Stopped by {signal.Signals(number).name}: run it again.", file=sys.stderr)
    raise _StoppedEarly(int(Exit.STOPPED))


def main() -> None:
    """Run the command line; an error is one sentence on stderr and its documented exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, _stop_early)  # until training handles the signals
    try:
        app()
    except SystemExit as end:  # Typer has said what is wrong with an argument, and calls that 2
        sys.exit(int(Exit.CONFIGURATION) if end.code == 2 else end.code)
    except Exception as error:
        _exit_with(error)
    finally:
        ignore_stop_signals()


def _exit_with(error: Exception) -> None:
    """Print an expected error and exit with its code; raise any other, which is a defect."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from rich.console import Console

    from ..core.error_messages import format_error

    if not isinstance(error, (RunError, HydraException, OmegaConfBaseException)):
        raise error
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"timetrial: {format_error(error)}", markup=False, highlight=False)
    sys.exit(int(getattr(error, "exit_code", Exit.CONFIGURATION)))


if __name__ == "__main__":
    main()
