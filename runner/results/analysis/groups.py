"""Cells: the runs of one work on one system under one setting. A score, an interval, a comparison is made of cells."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..parse import rules
from ..parse.runs import Run
from . import stats
from .stats import Interval, Survival


@dataclass
class Cell:
    """Runs that differ in nothing but luck; `scaling_factor` is what MLPerf multiplied the score with, None without."""

    round: str
    submitter: str
    system: str
    benchmark: str
    setting: str
    runs: list[Run] = field(default_factory=list)
    scaling_factor: float | None = None

    @property
    def title(self) -> str:
        """Names the cell among all others, shortest form first."""
        own = self.setting and f", {self.setting}"
        return f"{self.submitter} {self.system}".strip() + f" ({self.benchmark} {self.round}{own})"

    @property
    def model(self) -> str:
        """What is trained: `ssd` has been two models."""
        return rules.model_of(self.benchmark, self.round)

    @property
    def work(self) -> str:
        """Model, round and scale: cells of one work can be set side by side."""
        return " ".join(part for part in (self.model, self.round, self.runs[0].scale) if part)

    @property
    def accelerators(self) -> str:
        """Such as "8 x Tesla V100-SXM2-16GB"; the bare name where no count is known."""
        run = self.runs[0]
        count = f"{run.num_accelerators} x " if run.num_accelerators else ""
        return f"{count}{run.accelerator}" if run.accelerator else ""

    @cached_property
    def converged(self) -> list[Run]:
        """The runs that reached the target; for MLPerf v0.5's NCF the first 50 of them, as its rule was."""
        if not self._takes_first_fifty:
            return self._good
        order = stats.first_converged(
            [run.duration or 0.0 for run in self.runs],
            [run.success for run in self.runs],
            [run.started for run in self.runs],
        )
        return [self.runs[index] for index in order]

    @property
    def failed(self) -> int:
        """Runs without a result that count against the score."""
        return 0 if self._takes_first_fifty else len(self.runs) - len(self._good)

    @cached_property
    def _good(self) -> list[Run]:
        return [run for run in self.runs if run.success and run.duration]

    @property
    def _takes_first_fifty(self) -> bool:
        return self.benchmark == "ncf" and self.round == "v0.5" and len(self._good) >= 50 and not self.runs[0].own

    @property
    def minutes(self) -> list[float]:
        """Time-to-train of the converged runs, in minutes."""
        return [(run.duration or 0.0) / 60 for run in self.converged]

    @property
    def epochs(self) -> list[float]:
        """Epochs-to-converge of the converged runs."""
        return [float(run.epochs_to_converge) for run in self.converged if run.epochs_to_converge is not None]

    @property
    def seconds_per_epoch(self) -> list[float]:
        """Time-to-train over epochs of the converged runs."""
        return [run.seconds_per_epoch for run in self.converged if run.seconds_per_epoch]

    @property
    def train_seconds_per_epoch(self) -> list[float]:
        """The same without evaluation, where the log tells it apart."""
        return [run.train_seconds / run.epochs_to_converge for run in self.converged if run.epochs_to_converge]

    @cached_property
    def minutes_olympic(self) -> float | None:
        """MLPerf's score in minutes before any scaling."""
        return stats.olympic_mean(self.minutes, self.failed)

    @property
    def minutes_scaled(self) -> float | None:
        """MLPerf's score in minutes, multiplied with the factor that a round may set against lucky epochs."""
        if self.minutes_olympic is None:
            return None
        return self.minutes_olympic * (self.scaling_factor or 1.0)

    @cached_property
    def epochs_olympic(self) -> float | None:
        """The olympic mean of the epochs."""
        return stats.olympic_mean(self.epochs, self.failed)

    @cached_property
    def mean_minutes(self) -> Interval:
        """Mean time-to-train of the converged runs, in minutes."""
        return stats.interval(self.minutes)

    @cached_property
    def mean_epochs(self) -> Interval:
        """Mean epochs-to-converge."""
        return stats.interval(self.epochs)

    @cached_property
    def mean_seconds_per_epoch(self) -> Interval:
        """Mean time per epoch, in seconds."""
        return stats.interval(self.seconds_per_epoch)

    @cached_property
    def rate_per_card(self) -> float | None:
        """Training samples a second per accelerator, evaluation left out where it is logged; None where unknown."""
        run = self.runs[0]
        samples = run.train_samples if run.own else rules.train_samples(self.model)
        seconds = self.train_seconds_per_epoch
        if not samples or not run.num_accelerators or not seconds or not all(seconds):
            return None
        return samples * len(seconds) / sum(seconds) / run.num_accelerators

    @property
    def window(self) -> tuple[int, float] | None:
        """Of more runs than a score needs: the first of the consecutive ones whose score is the median, and it.

        The rule of MLPerf v1.1 for submitters who ran more than they had to; None where it does not apply.
        """
        wanted = rules.runs_for_a_score(self.benchmark)
        if not wanted or len(self.runs) <= wanted or self.benchmark == "ncf":
            return None
        minutes = [run.observed / 60 for run in self.runs]
        return stats.consecutive_median(minutes, [not run.success for run in self.runs], wanted)

    @cached_property
    def survival(self) -> Survival:
        """BatchSharding of runs that have reached the target by a time in minutes; the others are censored at their end."""
        return stats.survival([run.observed / 60 for run in self.runs], [run.success for run in self.runs])


def cells_of(runs: Iterable[Run]) -> list[Cell]:
    """Cells in order of their first run; a run that has not ended yet is in none."""
    ended = [run for run in runs if not run.unfinished]
    ways: dict[_Place, list[dict[str, Any]]] = {}  # by which runs that look alike were made
    for run in ended:
        known = ways.setdefault(_place(run), [])
        if (way := _way(run)) not in known:
            known.append(way)
    cells: dict[_Place, Cell] = {}
    for run in ended:
        place = _place(run)
        setting = ", ".join([place[4], *_apart(_way(run), ways[place])])
        key = (*place[:4], setting)
        if key not in cells:
            cells[key] = Cell(*key, scaling_factor=_scaling_factor(run.folder))
        cells[key].runs.append(run)
    return list(cells.values())


_Place = tuple[str, str, str, str, str]


def _place(run: Run) -> _Place:
    """Round, submitter, system, benchmark; and of our own runs scale, cards, precision and batch."""
    setting = ""
    if run.own:
        cards = f"{run.num_accelerators} x {run.accelerator}"
        setting = f"{run.scale}, {cards}, {run.precision}, batch {run.global_batch_size}"
    return run.round, run.submitter, run.system, run.benchmark, setting


def _way(run: Run) -> dict[str, Any]:
    """What else our own runs are kept apart by: target, recipe, and what trained and read."""
    if not run.own:
        return {}
    target = ", ".join(f"{value:g}" for value in run.target.values())
    return {**run.stack, "target": target, **run.hyperparameters}


def _apart(way: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    """The words that tell `way` from the others: nothing where there are none."""
    keys = dict.fromkeys(key for other in others for key in other)
    differing = [key for key in keys if any(other.get(key) != way.get(key) for other in others)]
    return [f"{_shortened(key)} {way[key]}" if key in way else f"no {_shortened(key)}" for key in differing]


def _shortened(key: str) -> str:
    for prefix in ("timetrial_", "sgd_", "lars_", "opt_"):
        key = key.removeprefix(prefix)
    return key.replace("_", " ")


def _scaling_factor(folder: Path) -> float | None:
    try:
        return float(json.loads((folder / "scaling.json").read_text())["scaling_factor"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
