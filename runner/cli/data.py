"""`timetrial data`: what lies on disk for workloads, and how it gets there."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from ...datasets.build.store import Store
from ...datasets.download import bundles
from ...datasets.registry import catalog
from ...datasets.registry.catalog import Source
from ..core.console import table_console
from ..core.errors import ConfigurationError, DataError

data = typer.Typer(no_args_is_help=True, help="What lies on disk for a workload, and how it gets there.")

_REDRAWN_SECONDS, _LINE_SECONDS = 0.1, 60.0
STATE_COLOURS = {"there": "green", "by hand": "green", "begun": "yellow", "damaged": "red", "absent": "dim"}

_Names = Annotated[list[str], typer.Argument(help="Names from `timetrial data list`.", show_default=False)]
_Words = Annotated[
    list[str] | None,
    typer.Argument(help="Names from `timetrial data list`, or overrides of `run`.", show_default=False),
]
DataDir = Annotated[Path, typer.Option(help="Folder that holds the sets.", metavar="FOLDER")]
_Jobs = Annotated[int, typer.Option(help="Files at a time, and threads that unpack.")]
_Sources = Annotated[
    Path | None,
    typer.Option(help="More sets, or other mirrors: a folder of files like datasets/sources/*.yaml.", metavar="FOLDER"),
]


@data.command("list")
def list_sets(data_dir: DataDir = Path("data"), sources: _Sources = None) -> None:
    """Every set: what for, how large, under which licence, and whether it is there."""
    terminal = Console()
    table = Table(box=None, padding=(0, 2, 0, 0), expand=terminal.is_terminal)
    for title in ("set", "state", "download", "checksums", "for", "licence"):
        shares = {"for": 1, "licence": 2}.get(title) if terminal.is_terminal else None  # of what the others leave
        table.add_column(title, no_wrap=True, ratio=shares)
    store = Store(data_dir)
    for source in catalog.read(sources).values():
        state = store.state(source)
        files = [file for file in source.files if not file.optional]
        sums = f"{sum(file.published_sum is not None for file in files)} of {len(files)}"
        licence = f"{'to be accepted: ' if source.accept else ''}{source.licence}"
        said = f"[{STATE_COLOURS[state]}]{state}[/]"
        table.add_row(escape(source.name), said, *map(escape, (_size(source), sums, source.serves, licence)))
    console = table_console(terminal)
    console.print(table)
    console.print(
        "Where no checksum is published, that of the first download is recorded, and later ones must have it."
    )


@data.command()
def fetch(
    names: _Names,
    data_dir: DataDir = Path("data"),
    accept_licence: Annotated[bool, typer.Option("--accept-licence", help="You have read the licences.")] = False,
    jobs: _Jobs = 4,
    given: Annotated[
        Path | None,
        typer.Option("--from", help="A folder or bundle that holds the files: no network is used.", metavar="PLACE"),
    ] = None,
    sources: _Sources = None,
) -> None:
    """Download sets and make of them what recipes read. Goes on where it was interrupted."""
    if given and not given.exists():
        raise DataError(f"{given} is missing: name a folder or a bundle that is there.")
    with _at_work(data_dir, jobs) as (store, console):
        wanted = _unmade(catalog.select(catalog.read(sources), names), store, data_dir, console)
        for source in wanted:
            console.print(f"{source.title} ({_size(source)}): {source.licence}; {source.licence_url}", markup=False)
        unread = [source.name for source in wanted if source.accept and not accept_licence]
        if unread:
            raise ConfigurationError(
                f"The licence of {', '.join(unread)} binds who downloads: read it, then add --accept-licence."
            )
        store.fetch(wanted, given)
        _make(wanted, store, data_dir, console)


@data.command()
def prepare(words: _Words, data_dir: DataDir = Path("data"), jobs: _Jobs = 4, sources: _Sources = None) -> None:
    """Make of fetched files what recipes read; or, given overrides of `run`, of those what that run reads.

    For instance: timetrial data prepare coco, timetrial data prepare workload=NAME scale=mini
    """
    if words and not _are_overrides(words):
        with _at_work(data_dir, jobs) as (store, console):
            chosen = catalog.select(catalog.read(sources), words)
            _make(_unmade(chosen, store, data_dir, console), store, data_dir, console)
        return
    from ..callbacks.progress import Lines

    title, owner, settings = _composed(words or [])
    console = Console(soft_wrap=True, highlight=False)
    prepare_data = getattr(owner, "prepare_data", None)
    if prepare_data:
        with Lines(console) as lines:
            prepare_data(settings, lines)
    console.print(f"{title}'s data are {'ready' if prepare_data else 'made ready as a run starts'}.", markup=False)


@data.command()
def verify(words: _Words = None, data_dir: DataDir = Path("data"), jobs: _Jobs = 4, sources: _Sources = None) -> None:
    """Look for all that is wrong with sets or bundles, to the byte; or with what overrides of `run` would read.

    Says a sentence for each problem and ends with exit code 21 if there is one. For instance:
    timetrial data verify coco, timetrial data verify bundle.tar, timetrial data verify workload=NAME scale=mini
    """
    if not words or _are_overrides(words):
        _verify_workload(words or [])
        return
    known, problems = catalog.read(sources), 0
    with _watch() as (console, watch):
        store = Store(data_dir, jobs, watch)
        for word in words:
            if word not in known and not Path(word).is_file():
                raise ConfigurationError(f"{word} is no data set and no bundle: choose from {', '.join(known)}.")
            faults = store.faults(known[word]) if word in known else bundles.faults(Path(word), watch)
            before = problems
            for fault in faults:
                console.print(fault, markup=False)
                problems += 1
            if problems == before:
                console.print(f"{word} is whole.", markup=False)
    if problems:
        found = "1 problem was" if problems == 1 else f"{problems} problems were"
        raise DataError(f"{found} found: remove what is damaged and fetch it again.")


@data.command()
def bundle(
    names: _Names,
    out: Annotated[Path, typer.Option(help="The bundle to write.", metavar="FILE", show_default=False)],
    data_dir: DataDir = Path("data"),
    sources: _Sources = None,
) -> None:
    """Pack fetched files for a machine without a network, where `fetch --from FILE` takes them."""
    with _at_work(data_dir, 1) as (store, console):
        chosen = catalog.select(catalog.read(sources), names)
        store.bundle(chosen, out)
        console.print(f"{out} holds {', '.join(source.name for source in chosen)} ({_bytes(out.stat().st_size)}).")
        console.print("It is a copy: the licences in its list say who may have it.")


class _Watch:
    """Bars on a terminal; elsewhere a line when something begins, and one a minute. Called from any thread."""

    def __init__(self, console: Console) -> None:
        self._console, self._lock = console, threading.Lock()
        self._bars: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn())
            self._bars = Progress(
                *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True
            )
        self._tasks: dict[str, Any] = {}
        self._drawn: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Shows how many bytes of something are done."""
        with self._lock:
            now = time.monotonic()
            every = _REDRAWN_SECONDS if self._bars else _LINE_SECONDS
            if what in self._drawn and done != total and now - self._drawn[what] < every:
                return
            new, self._drawn[what] = what not in self._drawn, now
            if self._bars:
                if new:
                    self._tasks[what] = self._bars.add_task(what, total=total)
                self._bars.start()
                self._bars.update(self._tasks[what], completed=done, total=total, visible=done != total)
            elif new or done != total:
                of = f" of {_bytes(total)}" if total else ""
                self._console.print(what if new else f"{what}: {_bytes(done)}{of}", markup=False)

    def close(self) -> None:
        """Takes the bars off the terminal."""
        if self._bars:
            self._bars.stop()


@contextmanager
def _watch() -> Iterator[tuple[Console, _Watch]]:
    console = Console(soft_wrap=True, highlight=False)
    watch = _Watch(console)
    try:
        yield console, watch
    finally:
        watch.close()


@contextmanager
def _at_work(data_dir: Path, jobs: int) -> Iterator[tuple[Store, Console]]:
    """The store of a folder that nobody else writes to meanwhile."""
    with _watch() as (console, watch):
        store = Store(data_dir, jobs, watch)
        with store.held():
            yield store, console


def _unmade(chosen: list[Source], store: Store, data_dir: Path, console: Console) -> list[Source]:
    """Those of the sets that are to be made; says which are not, and refuses to make one over a damaged one."""
    unmade = []
    for source in chosen:
        match store.state(source):
            case "damaged":
                raise DataError(f"{data_dir / source.name} is damaged: remove it, then fetch {source.name} again.")
            case "there":
                console.print(f"{data_dir / source.name} is there.", markup=False)
            case "by hand":
                console.print(f"{data_dir / source.name} was put there by hand and stays as it is.", markup=False)
            case _:
                unmade.append(source)
    return unmade


def _make(wanted: list[Source], store: Store, data_dir: Path, console: Console) -> None:
    for source in wanted:
        store.prepare(source)
        console.print(f"{data_dir / source.name} is ready.", markup=False)


def _are_overrides(words: list[str]) -> bool:
    """Whether words are overrides of a configuration and no names."""
    return any(re.match(r"[~+]|[\w./@]+=", word) for word in words)


def _composed(words: list[str]) -> tuple[str, Any, Any]:
    """Of a configuration: the workload's title, the class of its data, and their settings."""
    from ..config import schema

    settings = schema.check(schema.compose(["accelerator=cpu", *words]))
    _, owner = schema.classes(settings)
    return settings.workload.title, owner, schema.settings_of(owner, settings.recipe.data, "recipe.data")


def _verify_workload(words: list[str]) -> None:
    title, owner, settings = _composed(words)
    look = getattr(owner, "verify", None)
    if look is None:
        raise ConfigurationError(f"{title}'s data are checked as they are read: start a run.")
    console, problems = Console(soft_wrap=True, highlight=False), 0
    for problem in look(settings):
        console.print(problem, markup=False)
        problems += 1
    if problems:
        raise DataError(f"{title}'s data have {problems} problem{'s' * (problems > 1)}: mend the files and look again.")
    console.print(f"{title}'s data are whole.")


def _size(source: Source) -> str:
    size, all_known = source.size()
    if not size:
        return "size unpublished"
    return _bytes(size) if all_known else f"over {_bytes(size)}"


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
