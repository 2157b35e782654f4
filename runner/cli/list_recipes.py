"""The command `timetrial list`: every recipe, its datasets and their state, its target, and what runs needed."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .data import STATE_COLORS
from .options import AsJson, ConfigDir, DataDir

if TYPE_CHECKING:
    from ..record.published_results import PublishedEntry
    from ..results.analysis.expectations import Expectation

_COLUMNS = ("recipe", "data", "state", "target", "epochs", "GiB", "time")
Published = Annotated[
    str,
    typer.Option(help="List MLPerf's published results of a benchmark instead, such as resnet.", metavar="BENCHMARK"),
]


@dataclass(frozen=True)
class Entry:
    """A recipe. `data` maps the datasets that it reads to their state; it is empty if the recipe generates its own.

    `target` is quality by round; `is_reached` says whether own runs on these data are known to have reached it.
    """

    workload: str
    title: str
    task: str
    frameworks: list[str]
    recipe: str
    scale: str
    data: dict[str, str]
    target: dict[str, dict[str, float]]
    expected: "Expectation | None"
    is_reached: bool


def list_recipes(
    data_dir: DataDir = Path("data"), as_json: AsJson = False, published: Published = "", config_dir: ConfigDir = None
) -> None:
    """List every workload and recipe: datasets and their state, target; epochs, memory and time of known runs."""
    from ..config import search_path

    if published:
        from ..record import published_results

        results = published_results.find_benchmark(published)
        if as_json:
            print(json.dumps([asdict(result) for result in results], indent=2))
        else:
            _show_published(Console(), results)
        return
    with search_path.config_dir(config_dir):
        entries = list(find_entries(data_dir))
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    else:
        _show(Console(), entries)


def find_entries(data_dir: Path) -> Iterator[Entry]:
    """Yield all recipes of all workloads, those of installed packages included."""
    import yaml

    from ...datasets.build.store import DatasetStore
    from ...datasets.registry import catalog
    from ..config.compose import compose_recipes
    from ..config.error_messages import choices_of_groups
    from ..config.search_path import find_config
    from ..results.analysis import expectations

    store, datasets = DatasetStore(data_dir), catalog.read()
    groups = choices_of_groups()
    names = groups["recipe"]
    recipes = compose_recipes(names)
    for owner in groups["workload"]:
        path = find_config(f"workload/{owner}.yaml")
        assert path is not None
        text = path.read_text(encoding="utf-8")
        workload = yaml.safe_load(text)
        task = text.splitlines()[0].lstrip("# ").rstrip(".")  # the first line describes the workload
        for name in (name for name in names if name.startswith(f"{owner}/")):
            target = recipes[name]["target"]
            folders = sorted(set(re.findall(r"\$\{data_dir\}/([\w.-]+)", str(recipes[name]))))
            known = (expectations.find_expectation(name, round_name) for round_name in reversed(target))
            yield Entry(
                workload=owner,
                title=workload["title"],
                task=task,
                frameworks=["torch", *workload.get("engines", {})],
                recipe=name,
                scale=recipes[name]["scale"],
                data={folder: store.state(datasets[folder]) for folder in folders if folder in datasets},
                target=target,
                expected=(expected := next(filter(None, known), None)),
                is_reached=expected is not None and expected.by == "timetrial",
            )


def _show(console: Console, entries: Sequence[Entry]) -> None:
    """Print a row per recipe below a row per workload; where the table is too wide, it has fewer columns."""
    rows = list(_rows(entries))
    tables = [_table(rows, shown) for shown in range(len(_COLUMNS), 1, -1)]
    unlimited = console.options.update(max_width=1000)
    fitting = (table for table in tables if console.measure(table, options=unlimited).maximum <= console.width)
    table = next(fitting, tables[-1])
    left_out = _COLUMNS[len(table.columns) :]
    console.print(table)
    console.print(
        "\n* No run of timetrial on these data is known; epochs are of published runs.\n"
        "Epochs, memory and time come from known runs; --json names their source. "
        "timetrial estimate workload=NAME scale=NAME measures this machine.",
        highlight=False,
    )
    if left_out:
        console.print(f"Left out on {console.width} columns: {', '.join(left_out)}.", highlight=False)


def _table(rows: Sequence[Sequence[str]], shown: int) -> Table:
    """Return a table of the first `shown` columns."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    for title in _COLUMNS[:shown]:
        table.add_column(title, overflow="fold", justify="right" if title == "GiB" else "left")
    for row in rows:
        table.add_row(*row[:shown])
    return table


def _rows(entries: Sequence[Entry]) -> Iterator[list[str]]:
    workload = ""
    for entry in entries:
        if entry.workload != workload:
            workload = entry.workload
            yield [f"[bold]{escape(entry.title)}[/bold]"] + [""] * (len(_COLUMNS) - 1)
        expected = entry.expected
        yield [
            f" {escape(entry.recipe.split('/')[1])}",
            "\n".join(map(escape, entry.data)) or "generated",
            "\n".join(f"[{STATE_COLORS[state]}]{state}[/]" for state in entry.data.values()),
            escape(_targets(entry.target)),
            (expected.epoch_range.replace(" to ", "-") if expected else "") + "*" * (not entry.is_reached),
            f"{expected.memory_gib:g}" if expected and expected.memory_gib else "",
            f"{round(expected.seconds, 1):g}s {escape(expected.accelerator)}" if expected and expected.seconds else "",
        ]


def _show_published(console: Console, results: "Sequence[PublishedEntry]") -> None:
    """Print a row per published entry."""
    from ..record.published_results import LEGEND, TEXT_TITLES, TITLES

    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    for number, title in enumerate(TITLES):
        justify: Literal["left", "right"] = "left" if number < TEXT_TITLES else "right"
        table.add_column(title, no_wrap=title != "accelerators", overflow="fold", justify=justify)
    for result in results:
        table.add_row(*map(escape, result.cells()))
    console.print(table)
    console.print(f"\n{LEGEND}", highlight=False)


def _targets(target: dict[str, dict[str, float]]) -> str:
    """Return targets such as "0.377/0.339", one per round where rounds differ."""
    texts = {name: "/".join(f"{value:g}" for value in quality.values()) for name, quality in target.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"{text} {name}" for name, text in texts.items())
