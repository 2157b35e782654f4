"""Expected results of recipes, from runs of timetrial or published ones: epochs to converge, seconds, memory."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..parse.external import REFERENCE_DATA

_FILE = REFERENCE_DATA / "recipes.csv"


@dataclass(frozen=True)
class Expectation:
    """Epochs of the runs that reached the target, in ascending order, out of `runs` in total (None: not stated).

    `by` is timetrial for own runs on the recipe's own data, and others for published ones.

    If `is_range` is set, only the fewest and the most epochs are known. `seconds` is time-to-train on `setting`,
    `memory_gib` the peak device memory on `memory_setting`.
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
    with open(_FILE, newline="", encoding="utf-8") as file:
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
            )
            for row in csv.DictReader(file)
        )


def _parse_epochs(text: str) -> Iterator[int]:
    """Yield the epochs of each run: `7..8` is a range, `6x2 7` are two runs with 6 epochs and one with 7."""
    if ".." in text:
        yield from map(int, text.split(".."))
        return
    for part in text.split():
        epochs, _, times = part.partition("x")
        yield from [int(epochs)] * int(times or 1)
