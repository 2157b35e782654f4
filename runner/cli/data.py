"""`timetrial data`: list, fetch, prepare, verify and bundle datasets."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...datasets.build.store import DatasetStore
from ...datasets.download import bundles
from ...datasets.registry import catalog
from ...datasets.registry.catalog import Source
from ..core.console import StatusLine, table_console
from ..core.errors import ConfigurationError, DataError
from ..core.suggestions import choose_one_of
from .byte_progress import format_bytes, progress_display
from .options import AsJson

app = typer.Typer(no_args_is_help=True, help="List, fetch, prepare, verify and bundle datasets.")

STATE_COLORS = {"ready": "green", "unmanaged": "green", "partial": "yellow", "damaged": "red", "missing": "dim"}

_Names = Annotated[list[str], typer.Argument(help="Names from `timetrial data list`.", show_default=False)]
_NamesOrOverrides = Annotated[
    list[str] | None,
    typer.Argument(help="Names from `timetrial data list`, or overrides of `run`.", show_default=False),
]
DataDir = Annotated[Path, typer.Option(help="Folder of the datasets.", metavar="FOLDER")]
_Jobs = Annotated[int, typer.Option(help="Concurrent downloads and threads that unpack.")]
_Sources = Annotated[
    Path | None,
    typer.Option(
        help="More datasets or other mirrors: a folder of files like datasets/registry/sources/*.yaml.",
        metavar="FOLDER",
    ),
]


@app.command("list")
def list_datasets(data_dir: DataDir = Path("data"), sources: _Sources = None, as_json: AsJson = False) -> None:
    """List all datasets with state, size, use and license."""
    if as_json:
        store = DatasetStore(data_dir)
        print(json.dumps([_to_json(source, store) for source in catalog.read(sources).values()], indent=2))
        return
    terminal = Console()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("dataset", "state", "download", "checksums", "used by"):
        table.add_column(title, no_wrap=title != "used by")
    licenses = Table(box=None, padding=(0, 2, 0, 0))
    licenses.add_column("dataset", no_wrap=True)
    licenses.add_column("license", overflow="fold")
    store, known = DatasetStore(data_dir), catalog.read(sources)
    for source in known.values():
        state = store.state(source)
        files = [file for file in source.files if not file.optional]
        checksums = f"{sum(file.published_checksum is not None for file in files)} of {len(files)}"
        if recorded := store.recorded_checksums(source):
            checksums += f", {recorded} recorded"
        license_ = f"{'acceptance required: ' if source.requires_acceptance else ''}{source.license}"
        cells = (_format_download_size(source), checksums, source.used_by)
        table.add_row(escape(source.name), f"[{STATE_COLORS[state]}]{state}[/]", *map(escape, cells))
        licenses.add_row(escape(source.name), escape(license_))
    console = table_console(terminal)
    console.print(table)
    console.print()
    console.print(licenses)
    console.print(
        "Where no checksum is published, the first download's is recorded, and later downloads must match it."
    )
    unencrypted = [name for name, source in known.items() if any(map(catalog.is_unencrypted, source.urls()))]
    if unencrypted:
        console.print(
            f"Mirrors without encryption rest on the published checksums: {', '.join(unencrypted)}.", markup=False
        )


def _to_json(source: Source, store: DatasetStore) -> dict[str, Any]:
    """Return a dataset as an object; `download_bytes` is null if unpublished, the least if not `size_is_complete`."""
    size, is_complete = source.download_size()
    files = [file for file in source.files if not file.optional]
    return {
        "dataset": source.name,
        "title": source.title,
        "state": store.state(source),
        "download_bytes": size or None,
        "size_is_complete": is_complete,
        "files": len(files),
        "published_checksums": sum(file.published_checksum is not None for file in files),
        "recorded_checksums": store.recorded_checksums(source),
        "used_by": source.used_by,
        "license": source.license,
        "license_url": source.license_url,
        "requires_acceptance": source.requires_acceptance,
    }


@app.command()
def fetch(
    names: _Names,
    data_dir: DataDir = Path("data"),
    accept_license: Annotated[bool, typer.Option("--accept-license", help="Accept the licenses.")] = False,
    jobs: _Jobs = 4,
    origin: Annotated[
        Path | None,
        typer.Option("--from", help="A folder or bundle with the raw files; the network is not used.", metavar="PATH"),
    ] = None,
    sources: _Sources = None,
) -> None:
    """Download datasets and prepare them for recipes. Continues after an interruption."""
    if origin and not origin.exists():
        raise DataError(f"{origin} is missing: name an existing folder or bundle.")
    with _locked_store(data_dir, jobs) as (store, console):
        selected = _select_missing(catalog.select(catalog.read(sources), names), store, data_dir, console)
        for source in selected:
            size = _format_download_size(source)
            console.print(f"{source.title} ({size}): {source.license}; {source.license_url}", markup=False)
        unaccepted = [source.name for source in selected if source.requires_acceptance and not accept_license]
        if unaccepted:
            raise ConfigurationError(
                f"The license of {', '.join(unaccepted)} must be accepted: read it, then add --accept-license."
            )
        store.fetch(selected, origin)
        _prepare(selected, store, data_dir, console)


@app.command()
def prepare(
    names: _NamesOrOverrides, data_dir: DataDir = Path("data"), jobs: _Jobs = 4, sources: _Sources = None
) -> None:
    """Prepare fetched datasets for recipes; or, given overrides of `run`, what that run reads.

    For example: timetrial data prepare coco, timetrial data prepare workload=NAME scale=mini
    """
    if names and not _are_overrides(names):
        with _locked_store(data_dir, jobs) as (store, console):
            selected = catalog.select(catalog.read(sources), names)
            _prepare(_select_missing(selected, store, data_dir, console), store, data_dir, console)
        return
    title, data_class, settings = _compose(names or [])
    console = Console(soft_wrap=True, highlight=False)
    with StatusLine(console) as status_line:
        data_class.prepare_data(settings, status_line)
    console.print(f"{title}'s data are ready.", markup=False)


@app.command()
def verify(
    names: _NamesOrOverrides = None, data_dir: DataDir = Path("data"), jobs: _Jobs = 4, sources: _Sources = None
) -> None:
    """Check every byte of datasets or bundles, by default of all datasets in the folder.

    Given overrides of `run`, check the files which that run reads. Prints a sentence for each problem and exits with
    code 21 if there is one. For example: timetrial data verify, timetrial data verify coco bundle.tar,
    timetrial data verify workload=NAME scale=mini
    """
    if names and _are_overrides(names):
        _verify_workload(names)
        return
    known, num_problems = catalog.read(sources), 0
    with progress_display() as (console, progress):
        store = DatasetStore(data_dir, jobs, progress)
        for name in names or _find_verifiable(store, known.values(), data_dir, console):
            if name not in known and not Path(name).is_file():
                remedy = choose_one_of(name, list(known))
                raise ConfigurationError(f"{name} is neither a dataset nor a bundle: {remedy}.")
            is_dataset = name in known
            faults = store.find_faults(known[name]) if is_dataset else bundles.find_faults(Path(name), progress)
            num_faults = _print_all(faults, console)
            if not num_faults:
                console.print(f"{name} is intact.", markup=False)
            num_problems += num_faults
    if num_problems:
        problems = "1 problem" if num_problems == 1 else f"{num_problems} problems"
        raise DataError(f"{problems} found: remove the damaged files and fetch them again.")


def _find_verifiable(store: DatasetStore, sources: Iterable[Source], data_dir: Path, console: Console) -> list[str]:
    """Return the names of the datasets in the folder that have a manifest; print those without."""
    states = {source.name: store.state(source) for source in sources}
    for name, state in states.items():
        if state == "unmanaged":
            console.print(f"{data_dir / name} has no manifest and is not checked.", markup=False)
    names = [name for name, state in states.items() if state in ("ready", "damaged")]
    if not names:
        console.print(
            f"{data_dir} holds no dataset to check; timetrial data list shows all, timetrial data fetch NAME gets one.",
            markup=False,
        )
    return names


@app.command()
def bundle(
    names: _Names,
    out: Annotated[Path, typer.Option(help="The bundle to write.", metavar="FILE", show_default=False)],
    data_dir: DataDir = Path("data"),
    sources: _Sources = None,
) -> None:
    """Pack fetched files into one file for machines without network access; `fetch --from FILE` reads it."""
    with _locked_store(data_dir, 1) as (store, console):
        selected = catalog.select(catalog.read(sources), names)
        store.write_bundle(selected, out)
        contents = ", ".join(source.name for source in selected)
        console.print(f"{out} contains {contents} ({format_bytes(out.stat().st_size)}).", markup=False)
        console.print("The licenses in its manifest say who may receive it.")


@contextmanager
def _locked_store(data_dir: Path, jobs: int) -> Iterator[tuple[DatasetStore, Console]]:
    """Yield the store of a folder, locked for this process."""
    with progress_display() as (console, progress):
        store = DatasetStore(data_dir, jobs, progress)
        with store.lock():
            yield store, console


def _select_missing(selected: list[Source], store: DatasetStore, data_dir: Path, console: Console) -> list[Source]:
    """Return the datasets to build and report the others; raises `DataError` for a damaged one."""
    missing = []
    for source in selected:
        path = data_dir / source.name
        match store.state(source):
            case "damaged":
                raise DataError(f"{path} is damaged: remove it, then fetch {source.name} again.")
            case "ready":
                console.print(f"{path} is ready.", markup=False)
            case "unmanaged":
                console.print(f"{path} is unmanaged (it has no manifest) and stays unchanged.", markup=False)
            case _:
                missing.append(source)
    return missing


def _prepare(selected: list[Source], store: DatasetStore, data_dir: Path, console: Console) -> None:
    for source in selected:
        store.prepare(source)
        console.print(f"{data_dir / source.name} is ready.", markup=False)


def _are_overrides(names: list[str]) -> bool:
    """Return whether the arguments are overrides of a configuration rather than names."""
    return any(re.match(r"[~+]|[\w./@]+=", name) for name in names)


def _compose(overrides: list[str]) -> tuple[str, Any, Any]:
    """Return the workload's title, its data class and the settings of its data."""
    from ..config.compose import compose
    from ..config.validation import build_settings, resolve_classes, validate

    config = validate(compose(["accelerator=cpu", *overrides]).node)
    _, data_class = resolve_classes(config)
    return config.workload.title, data_class, build_settings(data_class, config.recipe.data, "recipe.data")


def _verify_workload(overrides: list[str]) -> None:
    title, data_class, settings = _compose(overrides)
    problems = data_class.verify(settings)
    console = Console(soft_wrap=True, highlight=False)
    num_problems = _print_all(problems, console)
    if num_problems:
        suffix = "s" * (num_problems > 1)
        raise DataError(f"{title}'s data have {num_problems} problem{suffix}: correct the files and verify again.")
    console.print(f"{title}'s data are intact.", markup=False)


def _print_all(problems: Iterator[str], console: Console) -> int:
    """Print each problem and return their number."""
    num_problems = 0
    for problem in problems:
        console.print(problem, markup=False)
        num_problems += 1
    return num_problems


def _format_download_size(source: Source) -> str:
    size, is_complete = source.download_size()
    if not size:
        return "size unpublished"
    return format_bytes(size) if is_complete else f"over {format_bytes(size)}"
