"""The commands `timetrial batch`: studies of many runs for batch systems."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.console import StatusLine, is_quiet, table_console
from ..core.errors import ConfigurationError, Exit, RunDirLocked
from .options import HYDRA_CONTEXT, AsJson, ConfigDir, Overrides

if TYPE_CHECKING:
    from ..launch.batch import Study, Task, TaskState
    from ..launch.rank_pool import RankPool

app = typer.Typer(no_args_is_help=True, help="Studies of many runs for batch systems: plan, run one task, see all.")
_Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of the study.", show_default=False)]
_Attempts = Annotated[
    int, typer.Option(min=1, envvar="TIMETRIAL_ATTEMPTS", help="Give a task up after this many failures.")
]
_COLORS = {"done": "green", "running": "cyan", "waiting": "default", "failed": "red"}


@app.command(context_settings=HYDRA_CONTEXT)
def plan(study: _Folder, overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Write STUDY/manifest.txt: one line per task of a sweep, in the overrides of `timetrial run -m`.

    For instance: timetrial batch plan study workload=NAME,OTHER gpus=1,2 'seed=range(1,11)'. The same sweep over more
    values adds tasks to an existing study; its tasks keep their numbers, runs and results.
    """
    from ..config import search_path
    from ..launch.batch import Study

    planned = Study(study, max_attempts=1)
    with search_path.config_dir(config_dir), StatusLine(Console(stderr=True)) as status_line:
        status_line("checking each configuration")
        num_added = planned.plan(overrides or [])
    num_tasks = len(planned.tasks())
    added = f", of which {num_added or 'none'} new" if num_added < num_tasks else ""
    Console(soft_wrap=True).print(f"{study} has tasks 0 to {num_tasks - 1}{added}", markup=False, highlight=False)


@app.command()
def run(
    context: typer.Context,
    study: _Folder,
    index: Annotated[
        int | None, typer.Argument(help="Line of the task in the manifest, from 0; none: all.", show_default=False)
    ] = None,
    attempts: _Attempts = 3,
    gpus: Annotated[
        int | None, typer.Option(help="Without INDEX: only tasks on this many GPUs, one after another.")
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Bring one task to its result, or all: start it, resume it or try it again; do nothing if it has one.

    Without INDEX, the tasks run side by side, each on GPUs of this machine of its own. Out of memory is tried again
    with half the micro-batch. Exit codes 12 and 33 ask for a restart, 33 on another node.
    """
    from ..config import search_path
    from ..launch.batch import Study

    console, opened = Console(), Study(study, attempts)
    tasks = opened.tasks()
    if index is None:
        with search_path.config_dir(config_dir):
            raise typer.Exit(int(_run_all(opened, console, context.obj, attempts, gpus)))
    if not 0 <= index < len(tasks):
        raise ConfigurationError(f"{study} has tasks 0 to {len(tasks) - 1}, not {index}.")
    task = tasks[index]
    if not is_quiet():
        console.print(f"task {index}: {shlex.join(task.overrides)}", soft_wrap=True, markup=False, highlight=False)
    try:
        with search_path.config_dir(config_dir):
            exit_code = opened.run(task, console, context.obj)
    except RunDirLocked as error:
        console.print(str(error), soft_wrap=True, markup=False, highlight=False)
        raise typer.Exit(int(Exit.STOPPED)) from error
    raise typer.Exit(int(exit_code))


def _run_all(study: "Study", console: Console, pool: "RankPool", attempts: int, gpus: int | None) -> Exit:
    """Run all open tasks on this machine, those on `gpus` GPUs if given."""
    from ..hardware import devices
    from ..launch import whole_study

    tasks = whole_study.open_tasks(study)
    if gpus is None and any(0 < task.num_gpus < devices.device_count() for task in tasks):
        return whole_study.run_side_by_side(study.path, attempts, tasks, *devices.visible_devices())
    return whole_study.run_in_turn(study, console, pool, gpus)


@app.command()
def status(
    study: _Folder,
    attempts: _Attempts = 3,
    pending: Annotated[
        bool,
        typer.Option("--pending", help="Only print, for scripts, lines of a number of GPUs and its open tasks."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of each task, at any time. Exits with 0 once all are done, else with 1."""
    from ..launch.batch import Study, TaskProgress

    opened = Study(study, attempts)
    states = [(task, opened.state(task)) for task in opened.tasks()]
    if pending:
        open_tasks = [task for task, state in states if state.progress in (TaskProgress.WAITING, TaskProgress.RUNNING)]
        for gpus in sorted({task.num_gpus for task in open_tasks}):
            print(gpus, _ranges(task.index for task in open_tasks if task.num_gpus == gpus))
        return
    if as_json:
        print(json.dumps([_to_json(task, state) for task, state in states], indent=2))
    else:
        table_console().print(_table(states))
    if any(state.progress != TaskProgress.DONE for _, state in states):
        raise typer.Exit(int(Exit.FAILURE))


def _to_json(task: "Task", state: "TaskState") -> dict[str, Any]:
    """Return a task as an object; `result`, `epochs` and `seconds` are null before its end, seconds of training."""
    training, is_over = state.record.training, state.progress in ("done", "failed")
    return {
        "index": task.index,
        "task": task.name,
        "overrides": task.overrides,
        "state": state.progress.value,
        "result": state.record.state.value if is_over else None,
        "epochs": training.epochs if training and is_over else None,
        "seconds": training.seconds if training and is_over else None,
        "restarts": state.record.restarts,
        "failures": len(state.failures),
        "message": _message(state),
    }


def _message(state: "TaskState") -> str:
    return state.record.error or (state.failures[-1].error if state.failures else "")


def _ranges(indices: Iterable[int]) -> str:
    """Return 0, 1, 2, 5 as `0-2,5`, the form that batch systems read."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def _table(states: Sequence[tuple["Task", "TaskState"]]) -> Table:
    progresses = [state.progress for _, state in states]
    counts = ", ".join(f"{progresses.count(name)} {name}" for name in _COLORS if name in progresses)  # type: ignore[arg-type]
    table = Table(title=f"{len(states)} tasks: {counts}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("task", "state", "result", "epochs", "seconds", "restarts", "failures", "message"):
        table.add_column(name, overflow="fold", justify="right" if name in ("epochs", "seconds") else "left")
    for task, state in states:
        record, progress = state.record, state.progress
        training = record.training
        is_done = progress == "done"
        table.add_row(
            escape(task.name),
            f"[{_COLORS[progress]}]{progress}[/]",
            record.state if progress in ("done", "failed") else "",
            str(training.epochs or "") if training else "",
            f"{training.seconds:.1f}" if is_done and training else "",
            str(record.restarts or ""),
            str(len(state.failures) or ""),
            escape(_message(state)),
        )
    return table
