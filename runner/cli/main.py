"""The command `timetrial`."""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape

from ..core.console import table_console
from ..core.errors import ConfigurationError, DataError, Exit, RunError
from ..core.signals import SIGNALS, ignore_stop_signals
from . import batch
from .data import DataDir, data

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train MLPerf workloads to their target quality, log them, check them, and read the times honestly.",
)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
)
def run(context: typer.Context) -> None:
    """Train one workload to its target. Takes Hydra overrides: workload=NAME scale=mini seed=1 gpus=1 ...

    See `timetrial run --help` for every group and value, `-m` for sweeps, `--cfg job` to only print.
    """
    raise typer.Exit(_hydra(context.args))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
)
def throughput(context: typer.Context) -> None:
    """Measure training and evaluation speed, on synthetic data unless data= is given. Takes the overrides of `run`.

    For instance: timetrial throughput -m workload=NAME recipe.global_batch_size=64,128,256 precision=bf16
    """
    words = context.args
    names = {word.split("=")[0].lstrip("+") for word in words}
    usual = {"scale": "reference", "data": "synthetic", "throughput.steps": "20"}
    if "throughput.steps=0" in words:
        raise ConfigurationError("throughput.steps must be 1 or more: 0 would train to the target.")
    if not {"--help", "-h"} & set(words):
        words = [*(f"{name}={value}" for name, value in usual.items() if name not in names), *words]
    raise typer.Exit(_hydra(words))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[GROUP=NAME | KEY=VALUE] ...",
)
def estimate(context: typer.Context) -> None:
    """How long a run would take, with what energy, cost and memory: a short measurement times known epochs.

    Takes the overrides of `run`, and measures on the run's own data unless data=synthetic is given. For instance:
    timetrial estimate workload=NAME scale=mini precision=bf16 gpus=2 usd_per_gpu_hour=2.5
    """
    from ..benchmarks import estimate as estimates
    from ..launch import job

    words = list(context.args)
    if not any(word.startswith("throughput.steps=") for word in words):
        words.append(f"throughput.steps={estimates.USUAL_STEPS}")
    estimates.run(job.with_accelerator(words), Console())


_Json = Annotated[bool, typer.Option("--json", help="Print it for a script.")]


@app.command("list")
def list_recipes(data_dir: DataDir = Path("data"), to_json: _Json = False) -> None:
    """Every workload and recipe: data and whether they are there, target, epochs, memory and time where known."""
    from . import list_recipes

    found = list_recipes.entries(data_dir)
    if to_json:
        print(json.dumps(list_recipes.as_table(found), indent=2))
    else:
        list_recipes.show(Console(), found)


@app.command()
def doctor(
    runs: Annotated[Path, typer.Option(help="Folder that runs go to.", metavar="FOLDER")] = Path("runs"),
    data_dir: DataDir = Path("data"),
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes seconds: the ranks' sum.")] = False,
    to_json: _Json = False,
) -> None:
    """Is this machine fit to run? Each line that is BAD ends in the command that mends it.

    Ends with exit code 22 where card, PyTorch or host are not, 21 where only data are damaged, else 0.
    """
    from ..benchmarks import doctor as examination

    checks = examination.examine(examination.look(), runs, data_dir, sum_up=not quick)
    made = list(checks) if to_json else examination.show(Console(), checks)
    code = examination.verdict(made)
    if to_json:
        print(json.dumps({"exit_code": int(code), "checks": examination.as_table(made)}, indent=2))
    raise typer.Exit(int(code))


@app.command()
def peaks(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(help="gemm, convolution, lstm, attention, copy, transfer, all-reduce.", show_default="all"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for peaks.json.", metavar="FOLDER", show_default="runs/<system>/peaks/<card>/<id>"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes and few repeats: seconds, rough figures.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--accelerator", help="A group of conf/accelerator.", show_default="this machine's")
    ] = None,
    to_json: _Json = False,
) -> None:
    """What this machine's card does at best: matrix products, convolutions, copies, sums over all cards.

    Kept as peaks.json; a report draws the roofline from it on which every measured workload has its place.
    """
    from ..benchmarks import peaks as best

    told, path = best.run(kinds or [], name, out, quick=quick, console=None if to_json else table_console())
    if to_json:
        print(json.dumps(told | {"path": str(path)}, indent=2))


@app.command()
def check(
    logs: Annotated[
        list[Path], typer.Argument(help="MLPerf logs (v0.7 and later), or run folders.", show_default=False)
    ],
) -> None:
    """Check MLPerf logs with the official checker, under the rules that fit each, in plain words."""
    from ..mlperf import compliance

    console, failed = Console(soft_wrap=True), False
    for path in _logs(logs):
        verdict = compliance.check(path)
        failed |= not verdict.compliant
        words = "[green]complies[/green]" if verdict.compliant else "[red]does not comply[/red]"
        console.print(f"{escape(str(path))}: {words} ({verdict.rules})")
        for problem in verdict.problems:
            console.print(f"  - {problem}", markup=False)
    raise typer.Exit(Exit.NOT_COMPLIANT if failed else 0)


_Paths = Annotated[
    list[Path],
    typer.Argument(help="Run folders, published result trees, logs, tables of borrowed figures.", show_default=False),
]


@app.command()
def report(
    context: typer.Context,
    paths: _Paths,
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.md and csv/.")] = Path("report"),
    runs_csv: Annotated[Path | None, typer.Option(help="Write one row a log to FILE.", metavar="FILE")] = None,
    scores_csv: Annotated[
        Path | None, typer.Option(help="Write one row a system and benchmark.", metavar="FILE")
    ] = None,
    export_mlperf: Annotated[
        Path | None, typer.Option(help="Lay the runs out as MLPerf's tools read them.", metavar="DIR")
    ] = None,
) -> None:
    """Judge any mix of results on one page: report.html, with Markdown and CSV behind every picture.

    With --runs-csv, --scores-csv or --export-mlperf only what they name is written, unless --out is given too.
    """
    from ..results.analysis.groups import cells_of
    from ..results.parse import sources
    from ..results.report import build as reports
    from ..results.report import csv_tables, mlperf_export

    console = Console(soft_wrap=True, highlight=False)
    asked = [wish for wish in (runs_csv, scores_csv, export_mlperf) if wish]
    source = context.get_parameter_source("out")
    page_asked = not asked or (source is not None and source.name == "COMMANDLINE")
    found = reports.build(paths) if page_asked else reports.Report([])
    if asked:
        runs = found.runs or sources.gather(paths)
        cells = found.cells or cells_of(runs)
        if runs_csv:
            csv_tables.write_runs(runs_csv, runs)
        if scores_csv:
            csv_tables.write_scores(scores_csv, cells)
        if export_mlperf:
            mlperf_export.export(cells, export_mlperf)
        console.print(f"logs: {len(runs)}, cells: {len(cells)}; wrote {', '.join(map(str, asked))}", markup=False)
    if page_asked:
        from ..results.report import page

        written = page.write(found, out)
        counts = f"runs: {len(found.runs)}, cells: {len(found.cells)}, measured speeds: {len(found.speeds)}"
        counts += f", borrowed figures: {len(found.borrowed)}"
        console.print(f"{counts}; wrote {written}", markup=False)


@app.command()
def study(paths: _Paths) -> None:
    """What repeated runs say: scores, intervals, censored runs, how many runs a difference needs; measured speeds."""
    from ..results.report import build as reports
    from ..results.report import terminal

    console, found = Console(), reports.build(paths)
    terminal.show_cells(console, found.cells)
    terminal.show_speeds(console, found.speeds)
    terminal.show_findings(console, found.findings)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="Run folders or logs of one side.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Those of the other side.", show_default=False)],
) -> None:
    """Two cards or settings side by side: what differs, the ratios with their intervals, the verdict."""
    from ..results.analysis import comparison, throughput_groups
    from ..results.analysis.groups import cells_of
    from ..results.parse import sources
    from ..results.report import terminal

    console = Console()
    measured = [throughput_groups.gather([path]) for path in (first, second)]
    sides = [
        cells_of(sources.gather([path], needed=not found))
        for path, found in zip((first, second), measured, strict=True)
    ]
    pairs = [(one, other) for one in sides[0] for other in sides[1] if one.benchmark == other.benchmark]
    fast = throughput_groups.pairs(*measured)
    if not pairs and not fast:
        raise DataError(f"{first} and {second} hold no benchmark in common: there is nothing to compare.")
    for one, other in pairs:
        terminal.show_comparison(console, comparison.compare(one, other))
    for pair in fast:
        terminal.show_speed_pair(console, pair)


app.add_typer(batch.app, name="batch")
app.add_typer(data, name="data")


def _logs(paths: list[Path]) -> list[Path]:
    """Each path that is a folder replaced by the logs below it."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("result_*.txt")) if path.is_dir() else [path]
        if not inside or not inside[0].exists():
            raise DataError(f"{path} is no log and holds none: name a result_*.txt file or a run folder.")
        found += inside
    return found


def _hydra(arguments: list[str]) -> int:
    """Hands the arguments of `timetrial run` to Hydra; returns the exit code of the run or of the whole sweep."""
    import hydra

    from ..config import schema
    from ..launch import job, sweep

    schema.register()
    asks = [argument for argument in arguments if argument in ("--help", "-h", "--hydra-help", "--version")]
    if not asks:
        arguments = job.with_accelerator(arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise what it would otherwise print and swallow
    sys.argv = [f"timetrial {sys.argv[1]}", *job.overrides_first(arguments)]
    try:
        hydra.main(version_base="1.3", config_path="pkg://timetrial.conf", config_name="config")(job.run)()
    except SystemExit:
        if not sweep.finished:  # argparse has said what is wrong with an option, or a signal came early
            raise
    end = (job.ended or sweep.finished or [Exit.TARGET_REACHED])[-1]
    if isinstance(end, Exception):
        raise end
    return int(end)


class _StoppedEarly(SystemExit):
    """No `Stopped`, because Hydra's composition catches every Exception."""

    exit_code = Exit.STOPPED

    def __str__(self) -> str:
        return "Stopped while it was being prepared: run it again."


def _stop_early(number: int, frame: FrameType | None) -> None:
    ignore_stop_signals()
    print(f"timetrial: Stopped by {signal.Signals(number).name}: run it again.", file=sys.stderr)
    raise _StoppedEarly(int(Exit.STOPPED))


def main() -> None:
    """Entry point: every refusal is one sentence on stderr and its documented exit code."""
    from ..core.error_messages import format_error

    console = Console(stderr=True, soft_wrap=True)
    for number in SIGNALS:
        signal.signal(number, _stop_early)  # until training takes the signals over
    try:
        app()
    except SystemExit as end:  # Typer has said what is wrong with an argument, and calls that 2
        sys.exit(int(Exit.CONFIGURATION) if end.code == 2 else end.code)
    except (RunError, HydraException, OmegaConfBaseException) as error:
        console.print(f"timetrial: {format_error(error)}", markup=False, highlight=False)
        sys.exit(int(getattr(error, "exit_code", Exit.CONFIGURATION)))
    finally:
        ignore_stop_signals()


if __name__ == "__main__":
    main()
