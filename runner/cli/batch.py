"""The commands `timetrial batch`."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.console import table_console
from ..core.errors import ConfigurationError, Exit, RunDirLocked
from ..launch.batch import Element, State, Study

app = typer.Typer(no_args_is_help=True, help="Studies of many runs for batch systems: plan, run one, look at all.")
_Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder.", show_default=False)]
_Attempts = Annotated[
    int, typer.Option(min=1, envvar="TIMETRIAL_ATTEMPTS", help="Give an element up after so many failures.")
]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def plan(context: typer.Context, study: _Folder) -> None:
    """Write STUDY/manifest.txt: one line an element of a sweep, in the words of `timetrial run -m`.

    For instance: timetrial batch plan study workload=NAME,OTHER gpus=1,2 'seed=range(1,11)'
    """
    planned = Study(study, most_attempts=1)
    with Console(stderr=True).status("looking whether each of the runs could run"):
        planned.plan(context.args)
    last = len(planned.elements()) - 1
    Console(soft_wrap=True).print(f"{study} has elements 0 to {last}", markup=False, highlight=False)


@app.command()
def run(
    study: _Folder,
    index: Annotated[int, typer.Argument(help="The element's line in the manifest, from 0.", show_default=False)],
    attempts: _Attempts = 3,
) -> None:
    """Bring one element to its result: nothing to do where it has one, else begin it, continue it or try it again.

    Out of memory is tried again with half the micro-batch. Codes 12 and 33 ask for another start, 33 on another node.
    """
    console, found = Console(), Study(study, attempts)
    elements = found.elements()
    if not 0 <= index < len(elements):
        raise ConfigurationError(f"{study} has elements 0 to {len(elements) - 1}, not {index}.")
    element = elements[index]
    console.print(f"element {index}: {shlex.join(element.overrides)}", soft_wrap=True, markup=False, highlight=False)
    try:
        raise typer.Exit(found.run(element, console))
    except RunDirLocked as error:
        console.print(str(error), soft_wrap=True, markup=False, highlight=False)
        raise typer.Exit(Exit.STOPPED) from error


@app.command()
def status(
    study: _Folder,
    attempts: _Attempts = 3,
    pending: Annotated[
        bool,
        typer.Option("--pending", help="Print only, for scripts, lines of a number of cards and its open indices."),
    ] = False,
) -> None:
    """How far each element has come; at any time, whoever runs what. Ends with 0 once all are done, else with 1."""
    found = Study(study, attempts)
    states = [(element, found.state(element)) for element in found.elements()]
    if pending:
        open_ = [element for element, state in states if state.word in ("waiting", "running")]
        for cards in sorted({_cards(element) for element in open_}):
            print(cards, _ranges(element.index for element in open_ if _cards(element) == cards))
    else:
        table_console().print(_table(states))
        if any(state.word != "done" for _, state in states):
            raise typer.Exit(Exit.FAILURE)


def _cards(element: Element) -> int:
    return 0 if element.value("accelerator", "") == "cpu" else int(element.value("gpus", "1"))


def _ranges(indices: Iterable[int]) -> str:
    """0, 1, 2, 5 as `0-2,5`, which is how batch systems want it."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


_COLOURS = {"done": "green", "running": "cyan", "waiting": "default", "failed": "red"}


def _table(states: Sequence[tuple[Element, State]]) -> Table:
    words = [state.word for _, state in states]
    title = ", ".join(f"{words.count(word)} {word}" for word in _COLOURS if word in words)
    table = Table(title=f"{len(states)} in all: {title}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("element", "", "ended", "epochs", "seconds", "restarts", "failures", "said"):
        table.add_column(name, overflow="fold", justify="right" if name in ("epochs", "seconds") else "left")
    for element, state in states:
        status, result = state.status, state.status.get("result") or {}
        table.add_row(
            escape(element.name),
            f"[{_COLOURS[state.word]}]{state.word}[/]",
            status.get("state", "") if state.word in ("done", "failed") else "",
            str(sum(block["epochs"] for block in status.get("blocks", ())) or ""),
            f"{result['seconds']:.1f}" if state.word == "done" and result else "",
            str(status.get("restarts") or ""),
            str(len(state.failures) or ""),
            escape(status.get("error") or (state.failures[-1]["error"] if state.failures else "")),
        )
    return table
