"""Expected results of recipes, from runs of timetrial or published ones: epochs to converge, seconds, memory."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..parse.external import REFERENCE_DATA

FILE = REFERENCE_DATA / "recipes.csv"
"""The rows of the mini recipes that docs/studies/h100.md has are written by scripts/measure/h100_study.py."""


@dataclass(frozen=True)
class Expectation:
    """Epochs of the runs that reached the target, in ascending order, out of `runs` in total (None: not stated).

    `by` is timetrial for own runs on the recipe's own data, and others for published ones.

    If `is_range` is set, only the fewest and the most epochs are known. `seconds` is the median time-to-train on
    `setting`, `seconds_range` the shortest and the longest one; `memory_gib` is the peak device memory on
    `memory_setting`. `pace_deviation` is the standard deviation of the difference between the log times per epoch of
    two runs on one machine.
    """

    recipe: str
    round: str
    runs: int | None
    epochs: tuple[int, ...]
    is_range: bool
    seconds: float | None
    setting: str
    memory_gib: float | None
    memory_setting: str
    source: str
    by: str = "timetrial"
    seconds_range: tuple[float, float] | None = None
    pace_deviation: float | None = None

    @property
    def accelerator(self) -> str:
        """The accelerator of `setting`, or "cpu"."""
        return "cpu" if "CPU" in self.setting else self.setting.split(",")[0].split()[-1]

    @property
    def epoch_range(self) -> str:
        """The fewest to the most epochs, such as "7 to 8"; empty if none are known."""
        if not self.epochs:
            return ""
        low, high = min(self.epochs), max(self.epochs)
        return f"{low}" if low == high else f"{low} to {high}"


def find_expectation(recipe: str, round_: str) -> Expectation | None:
    """Return what is known of a recipe such as "ssd/mini" with the target of `round_`."""
    return next((entry for entry in read_all() if entry.recipe == recipe and entry.round in ("", round_)), None)


@cache
def read_all() -> tuple[Expectation, ...]:
    """Return all known expectations."""
    with open(FILE, newline="", encoding="utf-8") as file:
        return tuple(
            Expectation(
                row["recipe"],
                row["round"],
                int(row["runs"]) if row["runs"] else None,
                tuple(_parse_epochs(row["epochs"])),
                ".." in row["epochs"],
                float(row["seconds"]) if row["seconds"] else None,
                row["setting"],
                float(row["memory_gib"]) if row["memory_gib"] else None,
                row["memory_setting"],
                row["source"],
                row["by"],
                _parse_range(row["seconds_range"]),
                float(row["pace_deviation"]) if row["pace_deviation"] else None,
            )
            for row in csv.DictReader(file)
        )


def _parse_range(text: str) -> tuple[float, float] | None:
    """Return the bounds of a range such as `0.27..0.63`."""
    low, _, high = text.partition("..")
    return (float(low), float(high)) if text else None


def _parse_epochs(text: str) -> Iterator[int]:
    """Yield the epochs of each run: `7..8` is a range, `6x2 7` are two runs with 6 epochs and one with 7."""
    if ".." in text:
        yield from map(int, text.split(".."))
        return
    for part in text.split():
        epochs, _, times = part.partition("x")
        yield from [int(epochs)] * int(times or 1)
