"""`timetrial list`: every workload and recipe, what it reads and whether that is there, and what to expect of it."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...datasets.build.store import Store
from ...datasets.registry import catalog
from ..results.analysis import expectations
from ..results.analysis.expectations import Expectation
from .data import STATE_COLOURS

_CONF = Path(__file__).parents[2] / "conf"


@dataclass(frozen=True)
class Entry:
    """A recipe: `data` maps the sets that it reads to their state, and is empty where it generates its own.

    `target` is quality by round.
    """

    workload: str
    title: str
    task: str
    frameworks: list[str]
    recipe: str
    data: dict[str, str]
    target: dict[str, dict[str, float]]
    expected: Expectation | None


def entries(data_dir: Path) -> Iterator[Entry]:
    """All recipes of all workloads, as conf/ has them."""
    store, known = Store(data_dir), catalog.read()
    for path in sorted((_CONF / "workload").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        facts = yaml.safe_load(text)
        # The first line of the file says what it is.
        task = text.splitlines()[0].lstrip("# ").rstrip(".")
        frameworks = ["torch", *facts.get("engines", {})]
        for recipe in sorted((_CONF / "recipe" / path.stem).glob("*.yaml")):
            name = f"{path.stem}/{recipe.stem}"
            target, read = _recipe(name)
            states = {found: store.state(known[found]) for found in sorted(read) if found in known}
            rounds = [round_ for round_ in reversed(target) if expectations.of_recipe(name, round_)]
            expected = expectations.of_recipe(name, rounds[0]) if rounds else None
            yield Entry(path.stem, facts["title"], task, frameworks, name, states, target, expected)


def _recipe(name: str) -> tuple[dict[str, dict[str, float]], set[str]]:
    """A recipe's targets, and the folders below `data_dir` that it or the one it is built on names."""
    text = (_CONF / "recipe" / f"{name}.yaml").read_text(encoding="utf-8")
    facts = yaml.safe_load(text)
    read = set(re.findall(r"\$\{data_dir\}/([\w.-]+)", text))
    target: dict[str, dict[str, float]] = {}
    for base in facts.get("defaults", ()):
        if base != "_self_":
            target, inherited = _recipe(base.split("@")[0])
            read |= inherited if not _replaces(facts) else set()
    return facts.get("target", target), read


def _replaces(facts: dict[str, Any]) -> bool:
    """Whether a recipe reads another set than the one it is built on."""
    return "data_dir" in str(facts.get("data", ""))


def show(console: Console, found: Iterator[Entry]) -> None:
    """A line a recipe below a line a workload; 80 columns are enough."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    for title in ("recipe", "data", "is", "target", "epochs", "GiB", "took"):
        table.add_column(title, no_wrap=True, justify="right" if title == "GiB" else "left")
    workload = ""
    for entry in found:
        if entry.workload != workload:
            workload = entry.workload
            table.add_row(f"[bold]{escape(entry.title)}[/bold]", *[""] * 6)
        known = entry.expected
        table.add_row(
            f" {escape(entry.recipe.split('/')[1])}",
            "\n".join(map(escape, entry.data)) or "generated",
            "\n".join(f"[{STATE_COLOURS[state]}]{state}[/]" for state in entry.data.values()),
            _targets(entry.target),
            known.reached.replace(" to ", "-") if known else "",
            f"{known.memory_gib:g}" if known and known.memory_gib else "",
            f"{known.seconds:g} s {known.card}" if known and known.seconds else "",
        )
    console.print(table)
    console.print(
        "\nEpochs, memory and seconds are those of runs that were made: --json says by whom and on "
        "what; timetrial estimate workload=NAME scale=NAME measures what this machine would need.",
        highlight=False,
    )


def _targets(target: dict[str, dict[str, float]]) -> str:
    """Such as "0.377/0.339", or one a round where rounds differ."""
    told = {round_: "/".join(f"{value:g}" for value in quality.values()) for round_, quality in target.items()}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "\n".join(f"{value} {round_}" for round_, value in told.items())


def as_table(found: Iterator[Entry]) -> list[dict[str, Any]]:
    """The entries for a script."""
    return [asdict(entry) for entry in found]
