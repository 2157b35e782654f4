"""Distributions of times and epochs with known means, and run groups drawn from them."""

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from timetrial.runner.record.run_record import RunRecord, TelemetrySummary
from timetrial.runner.results.analysis.comparison import Comparison
from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.intervals import grid_floor
from timetrial.runner.results.analysis.verdicts import Verdict
from timetrial.runner.results.parse.external import REFERENCE_DATA
from timetrial.runner.results.parse.runs import Run

Array = NDArray[np.float64]
PACE_CV = 0.003  # of the seconds per epoch from run to run
DIRECTIONS = (Verdict.FASTER, Verdict.SLOWER)
_FINE_EPOCHS = 100  # mean epochs of a scenario without a grid, so that the grid of epochs hardly matters


@dataclass(frozen=True)
class Scenario:
    """A distribution with its true means, observed on a grid of `spacing` (0: none); `least` is the coverage asked."""

    name: str
    draw: Callable[[np.random.Generator, int], Array]
    geometric: float
    arithmetic: float
    spacing: float = 0.0
    least: float = 0.93

    def floor(self, values: Array) -> float:
        """Return the floor that a run group of these values has."""
        return grid_floor(self.spacing, float(values.mean()))


def normal(cv: float = 0.04) -> Scenario:
    """Return normal values; the mean of their log is that of its series to fourth order in the CV."""
    geometric = math.exp(-(cv**2) / 2 - 3 * cv**4 / 4)
    return Scenario(f"normal, CV {cv:.0%}", lambda rng, n: 1 + cv * rng.standard_normal(n), geometric, 1.0)


def lognormal(deviation: float) -> Scenario:
    """Return lognormal values."""
    return Scenario(
        f"lognormal, s = {deviation:g}",
        lambda rng, n: np.exp(deviation * rng.standard_normal(n)),
        1.0,
        math.exp(deviation**2 / 2),
    )


def discrete(name: str, values: Sequence[float], weights: Sequence[float], least: float = 0.93) -> Scenario:
    """Return epochs of a few values, evaluated after every epoch."""
    points, shares = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64) / sum(weights)
    geometric, arithmetic = float(np.exp(shares @ np.log(points))), float(shares @ points)
    return Scenario(name, lambda rng, n: rng.choice(points, size=n, p=shares), geometric, arithmetic, 1.0, least)


@cache
def published_ncf() -> tuple[float, ...]:
    """Return the epochs of the published NCF runs at a batch of 1,048,576."""
    with open(REFERENCE_DATA / "observed_convergence.csv", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if (row["benchmark"], row["global_batch_size"]) == ("ncf", "1048576")
        ]
    return tuple(float(epochs) for row in rows for epochs in row["epochs"].split())


def few_epochs() -> Scenario:
    """Return the epochs that GNMT takes at a large batch."""
    return discrete("epochs {3, 4, 5} at .25/.6/.15", (3, 4, 5), (0.25, 0.6, 0.15))


def all_scenarios() -> list[Scenario]:
    """Return the distributions that every interval is tested on."""
    ncf = published_ncf()
    return [
        normal(),
        *map(lognormal, (0.02, 0.1, 0.4)),
        few_epochs(),
        discrete("epochs 46 x 4, 4 x 5", (4, 5), (46, 4), 0.9),
        discrete(f"epochs of {len(ncf)} published NCF runs", ncf, [1] * len(ncf), 0.9),
    ]


def run_group(
    name: str,
    epochs: Iterable[float],
    paces: Iterable[float],
    hosts: Iterable[str] = (),
    seeds: Iterable[int] = (),
) -> RunGroup:
    """Return a run group of converged runs of one recipe, evaluated after every epoch; those with seeds are our own."""
    group = RunGroup("v0.7", "simulated", name, "gnmt", "")
    machines, seeds_of_runs = list(hosts), list(seeds)
    for index, (count, pace) in enumerate(zip(epochs, paces, strict=True)):
        run = Run(Path(f"{name}/{index}"), Path(f"{name}/{index}"), round="v0.7", benchmark="gnmt", system=name)
        run.success, run.progress_to_converge, run.eval_spacing = True, float(count), 1.0
        run.duration = run.observed = float(count * pace)
        run.target, run.global_batch_size, run.hyperparameters = {"BLEU": 0.24}, 2048, {"opt_base_learning_rate": 0.002}
        if machines:
            run.host, run.gpu_ids = machines[index], frozenset({f"GPU of {machines[index]}"})
        if seeds_of_runs:
            run.seed, run.run_record = seeds_of_runs[index], RunRecord()
        group.runs.append(run)
    return group


def with_energy(group: RunGroup, watts: float) -> RunGroup:
    """Return the group, whose runs now have the energy of a GPU with this mean power."""
    for run in group.runs:
        joules = watts * run.observed
        telemetry = TelemetrySummary(
            gpus=1,
            every_seconds=1.0,
            seconds=run.observed,
            energy_joules=joules,
            energy_source="counter",
            integral_joules=joules,
            host_energy_joules=None,
            host_energy_source=None,
            mean_watts=watts,
            train_watts=watts,
            eval_watts=watts,
            samples_per_joule=None,
            core_mhz=None,
            highest_temperature_c=None,
            highest_memory_mib=None,
            at_power_cap=0.0,
        )
        run.run_record = replace(run.run_record or RunRecord(), telemetry=telemetry)
    return group


def draw_group(rng: np.random.Generator, name: str, scenario: Scenario, n: int, speed: float = 1.0) -> RunGroup:
    """Return a group of `n` runs whose epochs follow a scenario, on a GPU of a relative `speed`."""
    paces = 60 / speed * np.exp(PACE_CV * rng.standard_normal(n))
    epochs = scenario.draw(rng, n)
    return run_group(name, epochs if scenario.spacing else np.round(_FINE_EPOCHS * epochs), paces)


def fail(run: Run, seconds: float) -> None:
    """Let a run end after `seconds` without its target."""
    run.success, run.progress_to_converge = False, None
    run.duration = run.observed = seconds


def is_directed(comparison: Comparison) -> bool:
    """Return whether one side is called faster."""
    return comparison.verdict in DIRECTIONS
