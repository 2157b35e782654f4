"""Flags on results that are plausible, found implausible ones, and coverage of the predictions of a report."""

import csv
import math
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from timetrial.runner.benchmarks.estimate import PACE_DEVIATION, predict_epochs, widen
from timetrial.runner.results.analysis import convergence, scaling
from timetrial.runner.results.analysis.expectations import Expectation
from timetrial.runner.results.analysis.findings import pool_by_workload
from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.regression import fit_power_law
from timetrial.runner.results.parse import rules
from timetrial.runner.results.parse.external import REFERENCE_DATA
from timetrial.runner.training.loop import TrainingPlan

from .rows import Row, coverage
from .scenarios import Array, few_epochs, normal, published_ncf, run_group

_Reference = tuple[str, str, int]  # benchmark, round, global batch size
_REFERENCES: tuple[_Reference, ...] = (
    ("transformer", "v0.7", 81_920),
    ("transformer", "v0.7", 737_280),
    ("gnmt", "v0.7", 3_072),
    ("gnmt", "v0.7", 8_192),  # whose entries differ by 37%
    ("ncf", "v0.5", 1_048_576),
)
_SIZES = (3, 5, 10)
_GROUPS = 12  # of one report
_FASTER = 0.8
_PEAKS = np.array([14.90, 11.34, 14.13, 13.45, 8.14, 12.74])  # TFLOP/s of six GPUs of a published comparison
_FURTHER_PEAK = 1.5 * _PEAKS.max()


def convergence_rows(replicates: int, seed: int) -> list[Row]:
    """Groups flagged as converging too fast: drawn from their own reference, and 20% faster than it."""
    rows, count = [], replicates // 5
    for number, reference in enumerate(_REFERENCES):
        rng = np.random.default_rng([seed, 800 + number])
        name = "{} {} at {:,}".format(*reference)
        for kind, (draw, most) in _DRAWS.items():
            cells = {}
            for n in _SIZES:
                flagged = sum(_num_flags([draw(rng, reference, n)]) for _ in range(count))
                cells[n] = flagged / count, math.nan
            rows.append(Row(f"flagged as converging too fast; {name}, {kind}", cells, count, most=most))
    rng = np.random.default_rng([seed, 810])
    cells = {}
    for n in _SIZES:
        picks = (rng.integers(len(_REFERENCES), size=_GROUPS) for _ in range(count // 4))
        reports = ([_draw_from_all(rng, _REFERENCES[pick], n) for pick in report] for report in picks)
        cells[n] = sum(_num_flags(report) > 0 for report in reports) / (count // 4), math.nan
    name = f"any of {_GROUPS} groups in one report flagged; each drawn from its reference"
    return [*rows, Row(name, cells, count // 4, most=0.05)]


@cache
def _published_entries(reference: _Reference) -> dict[str, Array]:
    """Return the epochs of the published entries by their path."""
    with open(REFERENCE_DATA / "observed_convergence.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    same = [row for row in rows if (row["benchmark"], row["round"], row["global_batch_size"]) == _as_text(reference)]
    return {row["source"]: np.array([float(epochs) for epochs in row["epochs"].split()]) for row in same}


def _as_text(reference: _Reference) -> tuple[str, str, str]:
    benchmark, round_, batch = reference
    return benchmark, round_, str(batch)


def _draw_from_all(rng: np.random.Generator, reference: _Reference, n: int) -> RunGroup:
    return _group(reference, rng.choice(np.concatenate(list(_published_entries(reference).values())), n))


def _draw_from_entry(rng: np.random.Generator, reference: _Reference, n: int) -> RunGroup:
    return _group(reference, rng.choice(_pick_entry(rng, reference)[1], n))


def _draw_from_left_out(rng: np.random.Generator, reference: _Reference, n: int) -> RunGroup:
    """Return a group of the submitter and system of one entry, which the reference leaves out."""
    source, epochs = _pick_entry(rng, reference)
    group = _group(reference, rng.choice(epochs, n))
    group.submitter, group.system = source.split("/")[-4], source.split("/")[-2]
    return group


def _pick_entry(rng: np.random.Generator, reference: _Reference) -> tuple[str, Array]:
    entries = list(_published_entries(reference).items())
    return entries[rng.integers(len(entries))]


def _draw_faster(rng: np.random.Generator, reference: _Reference, n: int) -> RunGroup:
    group = _draw_from_all(rng, reference, n)
    return _group(reference, _speed_up(rng, np.array(group.epochs)))


_DRAWS: dict[str, tuple[Callable[[np.random.Generator, _Reference, int], RunGroup], float | None]] = {
    "drawn from its reference": (_draw_from_all, 0.05),
    "drawn from one entry of it": (_draw_from_entry, 0.05),
    "drawn from an entry left out of it": (_draw_from_left_out, None),
    "20% faster than it": (_draw_faster, None),
}


def _speed_up(rng: np.random.Generator, epochs: Array) -> Array:
    """Return the epochs of runs that reach the target in 80% of the time, somewhere within their last epoch."""
    return np.ceil(_FASTER * (epochs - rng.random(len(epochs))))


def _group(reference: _Reference, epochs: Array) -> RunGroup:
    group = run_group("simulated", epochs, 60 * np.ones(len(epochs)))
    group.benchmark, group.round, batch = reference
    for run in group.runs:
        run.target, run.global_batch_size = rules.quality_target(group.benchmark, group.round) or {}, batch
    return group


def _num_flags(groups: list[RunGroup]) -> int:
    return sum(finding.kind == "flag" for finding in convergence.check(groups))


def scaling_rows(replicates: int, seed: int) -> list[Row]:
    """Groups with 1 and 8 GPUs flagged as super-linear: with an efficiency of exactly 1, and of 1.3."""
    rows, count, ncf = [], replicates // 5, published_ncf()
    draws: tuple[tuple[str, Callable[[np.random.Generator, int], Array]], ...] = (
        ("published NCF epochs", lambda rng, n: rng.choice(ncf, n)),
        ("epochs {3, 4, 5}", few_epochs().draw),
        ("CV 20%", lambda rng, n: np.round(100 * np.maximum(normal(0.2).draw(rng, n), 0.01))),
    )
    for number, (name, draw) in enumerate(draws):
        for efficiency, most in ((1.0, 0.05), (1.3, None)):
            rng = np.random.default_rng([seed, 820 + number])
            cells = {}
            for n in (*_SIZES, 20):
                flagged = 0
                for _ in range(count):
                    groups = [
                        _scaled(draw(rng, n), gpus, 60 / gpus / (efficiency if gpus > 1 else 1)) for gpus in (1, 8)
                    ]
                    (series,) = scaling.compute_scalings(groups, [])
                    flagged += series.super_linear[1]
                cells[n] = flagged / count, math.nan
            rows.append(Row(f"flagged as super-linear; efficiency {efficiency:g}, {name}", cells, count, most=most))
    return rows


def _scaled(epochs: Array, gpus: int, pace: float) -> RunGroup:
    group = run_group(f"{gpus} GPUs", epochs, [pace] * len(epochs))
    for run in group.runs:
        run.num_accelerators, run.accelerator = gpus, "GPU"
    return group


def interconnect_rows(replicates: int, seed: int) -> list[Row]:
    """Effect of an interconnect whose ratio differs by 3% from workload to workload, each in four configurations.

    The columns are the numbers of workloads.
    """
    cells, count = {}, replicates // 2
    rng = np.random.default_rng([seed, 840])
    for workloads in (3, 6, 10):
        intervals = []
        for _ in range(count):
            logs = 0.03 * rng.standard_normal((workloads, 1)) + 0.005 * rng.standard_normal((workloads, 4))
            ratios = {
                (f"net{index}", "GPU", precision, None, gpus): math.exp(logs[index, 2 * half + pair])
                for index in range(workloads)
                for half, precision in enumerate(("fp16", "fp32"))
                for pair, gpus in enumerate((2, 4))
            }
            effect = pool_by_workload(ratios)
            intervals += [effect.interval()] if effect else []
        cells[workloads] = coverage(intervals, 1.0)
    return [Row("effect of an interconnect over n workloads that differ by 3%", cells, count, least=0.93)]


def regression_rows(replicates: int, seed: int) -> list[Row]:
    """Speed of a further GPU, 1.5 times above the largest peak, predicted from six."""
    rows = []
    kinds: dict[str, Callable[[np.random.Generator, Array], Array]] = {
        "errors add up, 10%": lambda rng, x: x + 0.1 * _PEAKS.mean() * rng.standard_normal(len(x)),
        "errors are factors, 15%": lambda rng, x: x * np.exp(0.15 * rng.standard_normal(len(x))),
        "speed grows as the root of the peak": lambda rng, x: np.sqrt(x) * np.exp(0.05 * rng.standard_normal(len(x))),
    }
    for number, (name, draw) in enumerate(kinds.items()):
        rng = np.random.default_rng([seed, 850 + number])
        intervals = []
        for _ in range(replicates):
            *speeds, further = draw(rng, np.array([*_PEAKS, _FURTHER_PEAK]))
            intervals.append(fit_power_law(_PEAKS, speeds).predict(_FURTHER_PEAK).scaled(1 / further))
        rows.append(Row(f"speed of a further GPU; {name}", {len(_PEAKS): coverage(intervals, 1.0)}, replicates, 0.9))
    return rows


def estimate_rows(replicates: int, seed: int) -> list[Row]:
    """Epochs of the next run, as `timetrial estimate` predicts them from n runs."""
    rows, ncf = [], published_ncf()
    draws: tuple[tuple[str, Callable[[np.random.Generator, int], Array]], ...] = (
        ("published NCF epochs", lambda rng, n: rng.choice(ncf, n)),
        ("epochs {3, 4, 5}", few_epochs().draw),
    )
    for number, (name, draw) in enumerate(draws):
        rng = np.random.default_rng([seed, 860 + number])
        cells = {n: _next_run_coverage(draw(rng, n + 1) for _ in range(replicates // 2)) for n in (*_SIZES, 20, 40)}
        rows.append(Row(f"epochs of the next run; {name}", cells, replicates // 2, least=0.93))
    return rows


def estimate_time_rows(replicates: int, seed: int) -> list[Row]:
    """Time of a run whose epochs are known, predicted from the pace of one measurement; columns are percent."""
    rng = np.random.default_rng([seed, 870])
    cells = {}
    for percent in (1, 2, 3):
        measured, run = np.exp(percent / 100 / math.sqrt(2) * rng.standard_normal((2, replicates)))
        bounds = np.array([widen((10 * pace,) * 3, PACE_DEVIATION) for pace in measured])
        cells[percent] = float(np.mean((bounds[:, 0] <= 10 * run) & (10 * run <= bounds[:, 2]))), math.nan
    name = "time of the next run, estimated from another run that differs by n percent"
    return [Row(name, cells, replicates, least=0.93)]


def _next_run_coverage(studies: Iterable[Array]) -> tuple[float, float]:
    """Return the share of studies whose last value lies in the interval from the others, and its half-width."""
    covered, widths = [], []
    plan = TrainingPlan(target={}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=100)
    for *epochs, following in studies:
        whole = tuple(sorted(int(value) for value in epochs))
        known = Expectation("", "", len(whole), whole, False, None, "", None, "", "")
        low, middle, high = predict_epochs(plan, known)
        covered.append(low <= following <= high)
        widths.append(50 * (high - low) / middle)
    return float(np.mean(covered)), float(np.median(widths))
