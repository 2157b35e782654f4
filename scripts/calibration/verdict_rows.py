"""Frequencies of verdicts: false ones between equal groups, found differences, plans, and sequential studies."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from timetrial.runner.results.analysis import planning
from timetrial.runner.results.analysis.comparison import Comparison, compare, compare_all
from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.intervals import Sample, log_ratio
from timetrial.runner.results.analysis.verdicts import Verdict

from . import design_rows, family_rows, order_rows
from .rows import SIZES, Row
from .scenarios import (
    DIRECTIONS,
    Array,
    Scenario,
    all_scenarios,
    draw_group,
    fail,
    few_epochs,
    is_directed,
    lognormal,
    normal,
    published_ncf,
    run_group,
)  # fmt: skip


def equal_rows(replicates: int, seed: int) -> list[Row]:
    """Verdicts "faster" or "slower" between groups that are equal."""
    rows, pairs, count = [], replicates // 3, replicates // 8
    for number, scenario in enumerate(all_scenarios()):
        rng = np.random.default_rng([seed, 600 + number])
        cells = {}
        for n in SIZES:
            false = sum(is_directed(_compare_draws(rng, scenario, n)) for _ in range(pairs))
            cells[n] = false / pairs, math.nan
        rows.append(Row(f"one pair; {scenario.name}", cells, pairs, most=0.06))
    for number, scenario in enumerate((normal(), few_epochs(), all_scenarios()[-1])):
        rng = np.random.default_rng([seed, 620 + number])
        cells = {}
        for n in SIZES:
            reports = (_compare_all_draws(rng, scenario, n) for _ in range(count))
            cells[n] = sum(any(map(is_directed, report)) for report in reports) / count, math.nan
        rows.append(Row(f"any of 12 pairs in one report; {scenario.name}", cells, count, most=0.06))
    return rows


def _compare_draws(rng: np.random.Generator, scenario: Scenario, n: int, speed: float = 1.0) -> Comparison:
    return compare(draw_group(rng, "a", scenario, n), draw_group(rng, "b", scenario, n, speed))


def _compare_all_draws(rng: np.random.Generator, scenario: Scenario, n: int) -> list[Comparison]:
    baseline = draw_group(rng, "baseline", scenario, n)
    return compare_all([(baseline, draw_group(rng, str(number), scenario, n)) for number in range(12)])


def reversal_rows(replicates: int, seed: int) -> list[Row]:
    """Groups that look better than they are: the share of verdicts that say so."""
    count = replicates // 4
    rng = np.random.default_rng([seed, 660])
    precision: dict[int, tuple[float, float]] = {}
    giving_up: dict[int, tuple[float, float]] = {}
    for n in SIZES:
        wrong = 0
        for _ in range(count):
            baseline = run_group("fp32", np.round(20 * np.exp(0.05 * rng.standard_normal(n))), [60.0] * n)
            other = run_group("bf16", np.round(26 * np.exp(0.05 * rng.standard_normal(n))), [50.0] * n)
            for run, name in [(run, "fp32") for run in baseline.runs] + [(run, "bf16") for run in other.runs]:
                run.precision = name
            wrong += compare(baseline, other).verdict == Verdict.FASTER
        precision[n] = wrong / count, math.nan
        drawn = [compare(_reliable(rng, n, 0.92, 12.0), _reliable(rng, n, 0.68, 11.0)) for _ in range(count)]
        giving_up[n] = sum(comparison.verdict == Verdict.FASTER for comparison in drawn) / count, math.nan
    return [
        Row("1.2 times faster per epoch, 30% more epochs, other precision: called faster", precision, count, most=0.06),
        Row("succeeds in 68% against 92%, converged runs 8% faster: called faster", giving_up, count, most=0.06),
    ]


def _reliable(rng: np.random.Generator, n: int, success: float, mean: float) -> RunGroup:
    group = run_group(f"{success:.0%}", np.round(mean * np.exp(0.1 * rng.standard_normal(n))), [60.0] * n)
    for run in group.runs:
        if rng.random() > success:
            fail(run, 20 * 60.0)
    return group


def power_rows(replicates: int, seed: int) -> list[Row]:
    """Share of pairs in which a GPU that is faster by so much is called faster."""
    rows, count = [], replicates // 4
    for number, (scenario, speed) in enumerate(
        ((normal(), 1.05), (normal(), 1.1), (few_epochs(), 1.25), (lognormal(0.1), 1.25))
    ):
        rng = np.random.default_rng([seed, 680 + number])
        cells = {}
        for n in SIZES:
            found = sum(_compare_draws(rng, scenario, n, speed).verdict == Verdict.FASTER for _ in range(count))
            cells[n] = found / count, math.nan
        rows.append(Row(f"{speed - 1:.0%} faster; {scenario.name}", cells, count))
    return rows


def plan_rows(replicates: int, seed: int) -> list[Row]:
    """Pilots of n runs: the share whose planned number of runs finds 5% with at least 80% power."""
    rows, pilots = [], max(replicates // 5, 100)
    for number, deviation in enumerate((0.02, 0.04, 0.1)):
        rng = np.random.default_rng([seed, 700 + number])
        cells = {}
        for n in SIZES[1:]:
            plans = [
                planning.runs_needed(Sample(tuple(lognormal(deviation).draw(rng, n))), 0.05) for _ in range(pilots)
            ]
            enough = [plan is not None and _simulated_power(rng, plan.high, deviation) >= 0.79 for plan in plans]
            cells[n] = float(np.mean(enough)), math.nan
        rows.append(Row(f"pilots of n runs, s = {deviation:g}", cells, pilots, least=0.75))
    return rows


_powers: dict[tuple[int, float], float] = {}


def _simulated_power(rng: np.random.Generator, runs: int, deviation: float) -> float:
    """Return the share of 4,000 studies whose Welch interval finds 5%; kept, because many pilots plan the same."""
    if planning.power_of(runs, 0.05, deviation) > 0.9:
        return 1.0  # far from the bar
    if (runs, deviation) not in _powers:
        found = 0
        for _ in range(4000):
            first, second = (Sample(tuple(np.exp(deviation * rng.standard_normal(runs)))) for _ in range(2))
            ratio = log_ratio(first, second)
            shifted = ratio.interval().scaled(1.05)
            found += not shifted.low <= 1 <= shifted.high
        _powers[runs, deviation] = found / 4000
    return _powers[runs, deviation]


def sequential_rows(replicates: int, seed: int) -> list[Row]:
    """Studies looked at after every run of each group, up to 30: any false verdict, and when 5% is found."""
    rows, count = [], replicates // 5
    ncf = published_ncf()
    draws: Sequence[tuple[str, Callable[[np.random.Generator, int], Array], float]] = (
        ("normal, CV 4%", normal().draw, 0.0),
        ("lognormal, s = 0.1", lognormal(0.1).draw, 0.0),
        ("epochs {3, 4, 5}", few_epochs().draw, 1.0),
        ("published NCF epochs", lambda rng, n: rng.choice(ncf, size=n), 1.0),
    )
    for number, (name, draw, spacing) in enumerate(draws):
        rng = np.random.default_rng([seed, 720 + number])
        stops = [_first_stop(draw(rng, 30), draw(rng, 30), spacing) for _ in range(count)]
        cells = {30: (sum(verdict in DIRECTIONS for verdict, _ in stops) / count, math.nan)}
        rows.append(Row(f"equal groups; {name}", cells, count, most=0.06))
    rng = np.random.default_rng([seed, 730])
    for cv in (0.02, 0.04):
        stops = [_first_stop(1.05 * normal(cv).draw(rng, 30), normal(cv).draw(rng, 30), 0.0) for _ in range(count)]
        found = [n if verdict == Verdict.FASTER else math.inf for verdict, n in stops]
        share = float(np.mean(np.isfinite(found)))
        middle = f"median after {np.median(found):.0f} runs a side" if share > 0.5 else "median not reached"
        rows.append(Row(f"5% faster; normal, CV {cv:.0%}: found, {middle}", {30: (share, math.nan)}, count))
    return rows


def _first_stop(first: Array, second: Array, spacing: float) -> tuple[str, int]:
    """Return the first verdict on growing samples and the runs of each at which it comes."""
    for n in range(planning.MIN_PILOT_RUNS, planning.MAX_LOOKS + 1):
        samples = tuple(
            Sample(tuple(values[:n]), spacing / math.sqrt(12) / float(values[:n].mean())) for values in (first, second)
        )
        look = planning.next_look(log_ratio(*samples), (samples[0], samples[1]))
        if look and look.verdict:
            return look.verdict, n
    return "", planning.MAX_LOOKS


TABLES: dict[str, Sequence[Callable[[int, int], list[Row]]]] = {
    "False verdicts": (
        equal_rows,
        design_rows.unequal_size_rows,
        design_rows.machine_rows,
        design_rows.few_machine_rows,
        design_rows.shared_seed_rows,
        design_rows.margin_rows,
        design_rows.host_name_rows,
        design_rows.table_rows,
        design_rows.failure_rows,
        design_rows.reliability_rows,
        design_rows.arithmetic_rows,
        reversal_rows,
        order_rows.correlated_rows,
        order_rows.pace_rows,
        order_rows.drift_rows,
        order_rows.disturbed_rows,
    ),
    "Families": (
        family_rows.pair_rows,
        family_rows.throughput_rows,
        family_rows.mean_rows,
    ),
    "Found differences and plans": (power_rows, design_rows.pair_power_rows, plan_rows),
    "Looking after every run": (sequential_rows, family_rows.sequential_rows, order_rows.sequential_rows),
}
