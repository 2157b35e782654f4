"""The command `timetrial`: one module per command, and one way to end with an error."""

import gc
import sys
from collections.abc import Sequence

from ..core.atomic_files import file_errors_as_run_errors
from ..core.console import flush_output, is_quiet, survive_output_errors
from ..core.errors import Exit, RunError
from ..core.private_caches import name_private_caches
from ..core.signals import stop_early
from ..launch.rank_pool import RankPool

_USAGE_ERROR = 2  # of Typer, which has said what is wrong with an argument
# Commands that import PyTorch or read many files before they print anything.
_FIRST_LINES = {
    "run": "reading the configuration",
    "throughput": "reading the configuration",
    "estimate": "reading the configuration",
    "list": "reading the recipes",
    "doctor": "inspecting this machine",
    "accept": "inspecting this machine",
    "peaks": "inspecting this machine",
    "check": "reading the logs",
    "report": "reading the results",
    "study": "reading the results",
    "compare": "reading the results",
}
_NEW_OBJECTS = 100_000  # between garbage collections: the imports of a run would cause a hundred of them
_MAX_EARLY_RANKS = 8
_PRINTING_OPTIONS = {"--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--info", "-i"}
_SWEEP_OPTIONS = {"-m", "--multirun"}
_SILENT_OPTIONS = {*_PRINTING_OPTIONS, "--quiet", "--json", "--compare"}  # the last one measures nothing


def main() -> None:
    """Run the command line; an error is one sentence on stderr and its documented exit code."""
    survive_output_errors()
    gc.set_threshold(_NEW_OBJECTS)
    arguments = sys.argv[1:]
    with stop_early(ignore_after=True):  # until training handles the signals
        _print_first_line(arguments)
        name_private_caches()  # before anything imports PyTorch
        is_sweep = bool(_SWEEP_OPTIONS & {*arguments}) or arguments[:2] == ["batch", "run"]
        with RankPool(for_sweep=is_sweep) as pool:
            pool.start_waiting(num_early_ranks(arguments))
            code = run_command(arguments, pool)
        sys.exit(flush_output(code))


def run_command(arguments: Sequence[str], pool: RankPool) -> int:
    """Run the command with its arguments and return its exit code; commands find `pool` in Typer's context."""
    try:
        with file_errors_as_run_errors():
            from .app import GLOBAL_OPTIONS, app

            app(sorted(arguments, key=lambda argument: argument not in GLOBAL_OPTIONS), prog_name="timetrial", obj=pool)
        return int(Exit.TARGET_REACHED)
    except SystemExit as end:
        code = int(end.code or 0)
        return int(Exit.CONFIGURATION) if code == _USAGE_ERROR else code
    except Exception as error:
        return _report(error)


def _print_first_line(arguments: Sequence[str]) -> None:
    """Say on standard error what a slow command does, before its imports."""
    activity = _FIRST_LINES.get(arguments[0]) if arguments else None
    if activity and not is_quiet() and not _SILENT_OPTIONS & set(arguments):
        print(f"timetrial: {activity}", file=sys.stderr, flush=True)


def num_early_ranks(arguments: Sequence[str]) -> int:
    """Return how many ranks a run on this node, or each of a sweep, will need, as far as the arguments alone say.

    A wrong number costs time only: the launcher starts ranks that are missing, and ends those that are left.
    """
    command, options = arguments[:1], {*arguments[1:]}
    if command not in (["run"], ["throughput"]) or options & _PRINTING_OPTIONS:
        return 0
    values = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if "launcher" in values:
        return 0
    gpus = values.get("gpus", "")
    return min(int(gpus), _MAX_EARLY_RANKS) if gpus.isdecimal() else 1


def _report(error: Exception) -> int:
    """Print an expected error and return its exit code; raise any other, which is a defect."""
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and "failed to map segment" in str(error)):
        print("timetrial: Too little memory is left to start: raise this shell's or job's limit.", file=sys.stderr)
        return int(Exit.OUT_OF_MEMORY)
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from rich.console import Console

    from ..config.error_messages import format_error

    if not isinstance(error, (RunError, HydraException, OmegaConfBaseException)):
        raise error
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"timetrial: {format_error(error)}", markup=False, highlight=False)
    return int(getattr(error, "exit_code", Exit.CONFIGURATION))


if __name__ == "__main__":
    main()
