"""What recipes need by those who have run them: epochs to the target, seconds, memory. ThroughputMeter or published alone."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..parse.external import KNOWN

_FILE = KNOWN / "recipes.csv"


@dataclass(frozen=True)
class Expectation:
    """Epochs of the runs that reached the target, in order, of `runs` in all (None: not told).

    With `span` alone the fewest and the most are known. `seconds` is time-to-train as on `setting`, `memory_gib` the
    most a card held as on `memory_setting`.
    """

    recipe: str
    round: str
    runs: int | None
    epochs: tuple[int, ...]
    span: bool
    seconds: float | None
    setting: str
    memory_gib: float | None
    memory_setting: str
    source: str

    @property
    def card(self) -> str:
        """The card of `setting`, or cpu."""
        return "cpu" if "CPU" in self.setting else self.setting.split(",")[0].split()[-1]

    @property
    def reached(self) -> str:
        """Such as "7 to 8 epochs"; empty where none is known."""
        if not self.epochs:
            return ""
        low, high = min(self.epochs), max(self.epochs)
        return f"{low}" if low == high else f"{low} to {high}"


def of_recipe(recipe: str, round_: str) -> Expectation | None:
    """What is known of a recipe such as "ssd/mini", with the target of this round."""
    return next((found for found in _all() if found.recipe == recipe and found.round in ("", round_)), None)


@cache
def _all() -> tuple[Expectation, ...]:
    with open(_FILE, newline="", encoding="utf-8") as file:
        return tuple(
            Expectation(
                row["recipe"],
                row["round"],
                int(row["runs"]) if row["runs"] else None,
                tuple(_epochs(row["epochs"])),
                ".." in row["epochs"],
                float(row["seconds"]) if row["seconds"] else None,
                row["setting"],
                float(row["memory_gib"]) if row["memory_gib"] else None,
                row["memory_setting"],
                row["source"],
            )
            for row in csv.DictReader(file)
        )


def _epochs(text: str) -> Iterator[int]:
    """`7..8` are the ends of a span; `6x2 7` are two runs that took 6 and one that took 7."""
    if ".." in text:
        yield from map(int, text.split(".."))
        return
    for word in text.split():
        value, _, times = word.partition("x")
        yield from [int(value)] * int(times or 1)
