"""Frequencies of any false verdict in a family: a page, a table or a command makes one promise about all its words."""

import math
from collections.abc import Sequence

import numpy as np

from timetrial.runner.record.throughput_result import ThroughputResult
from timetrial.runner.results.analysis import planning
from timetrial.runner.results.analysis.comparison import compare_all
from timetrial.runner.results.analysis.intervals import LogEstimate, Sample, log_ratio
from timetrial.runner.results.analysis.scores import combine_fixed
from timetrial.runner.results.analysis.throughput_comparison import compare_closest
from timetrial.runner.results.analysis.throughput_groups import ThroughputGroup
from timetrial.runner.results.analysis.verdicts import Verdict, decide, family_levels

from .rows import SIZES, Row
from .scenarios import DIRECTIONS, Scenario, discrete, draw_group, is_directed, lognormal, normal, run_group

_MEMBERS = 20


def pair_rows(replicates: int, seed: int) -> list[Row]:
    """Twenty pairs in one report: equal ones on a grid of two values, and ones just beyond the margin."""
    rows, count = [], replicates // 8
    grids = [discrete("epochs 10 or 20", (10, 20), (1, 1)), discrete("epochs 4 or 5", (4, 5), (1, 1))]
    for number, scenario in enumerate(grids):
        rng = np.random.default_rng([seed, 760 + number])
        cells = {n: (_share_directed(rng, scenario, n, count), math.nan) for n in SIZES}
        rows.append(Row(f"any of {_MEMBERS} pairs in one report; {scenario.name}", cells, count, most=0.06))
    rng = np.random.default_rng([seed, 765])
    cells = {}
    for n in SIZES:
        found = (_any_called_equal(rng, n) for _ in range(count))
        cells[n] = sum(found) / count, math.nan
    name = f"any of {_MEMBERS} pairs that truly differ by 5.01% called equal; normal, CV 1%"
    return [*rows, Row(name, cells, count, most=0.06)]


def _share_directed(rng: np.random.Generator, scenario: Scenario, n: int, count: int) -> float:
    found = 0
    for _ in range(count):
        baseline = draw_group(rng, "baseline", scenario, n)
        pairs = [(baseline, draw_group(rng, str(number), scenario, n)) for number in range(_MEMBERS)]
        found += any(map(is_directed, compare_all(pairs)))
    return found / count


def _any_called_equal(rng: np.random.Generator, n: int) -> bool:
    sides = [
        [run_group(name, [1000.0] * n, 60 * pace * np.exp(0.01 * rng.standard_normal(n))) for _ in range(_MEMBERS)]
        for name, pace in (("a", 1.0501), ("b", 1.0))
    ]
    return any(pair.verdict is Verdict.EQUAL for pair in compare_all(list(zip(*sides, strict=True))))


def throughput_rows(replicates: int, seed: int) -> list[Row]:
    """Twenty configurations measured on two equal GPUs."""
    count = replicates // 8
    rng = np.random.default_rng([seed, 770])
    cells = {}
    for n in SIZES:
        drawn = (_compare_throughput(rng, n) for _ in range(count))
        cells[n] = sum(any(verdict in DIRECTIONS for verdict in verdicts) for verdicts in drawn) / count, math.nan
    return [Row(f"any of {_MEMBERS} throughput configurations; lognormal, s = 0.05", cells, count, most=0.06)]


def _compare_throughput(rng: np.random.Generator, n: int) -> list[Verdict]:
    sides = [
        [_throughput(side, number, 100 * np.exp(0.05 * rng.standard_normal(n))) for number in range(_MEMBERS)]
        for side in "ab"
    ]
    return [comparison.verdict for comparison in compare_closest(*sides)]


def _throughput(side: str, number: int, rates: Sequence[float]) -> ThroughputGroup:
    results = [
        ThroughputResult(
            *(8, rate, None, 1.0, rate, None, 1.0, 1.0, 0.0, 0.0, 8, 8, (rate,), (rate,), 0.0),
            *(1, None, False, None, None),
        )
        for rate in rates
    ]
    return ThroughputGroup(side, {"workload.name": f"network {number}"}, results)


def mean_rows(replicates: int, seed: int) -> list[Row]:
    """The column "All" of a page: twenty systems, each the mean over three benchmarks."""
    count = replicates // 8
    rng = np.random.default_rng([seed, 775])
    cells = {}
    for n in SIZES:
        found = 0
        for _ in range(count):
            means = [combine_fixed([_ratio(rng, n) for _ in range(3)]) for _ in range(_MEMBERS)]
            verdicts = [decide(mean, levels=level) for mean, level in zip(means, family_levels(means), strict=True)]
            found += any(verdict in DIRECTIONS for verdict in verdicts)
        cells[n] = found / count, math.nan
    return [Row(f"any number under All of {_MEMBERS} systems; normal, CV 4%", cells, count, most=0.06)]


def _ratio(rng: np.random.Generator, n: int) -> LogEstimate:
    return log_ratio(*(Sample(tuple(normal().draw(rng, n))) for _ in range(2)))


def sequential_rows(replicates: int, seed: int) -> list[Row]:
    """Studies of several pairs, looked at after every run of each: any false stop."""
    rows, count = [], replicates // 20
    for number, members in enumerate((5, _MEMBERS)):
        rng = np.random.default_rng([seed, 780 + number])
        stops = sum(any(_stops_falsely(rng, members) for _ in range(members)) for _ in range(count))
        name = f"equal groups, any of {members} pairs; lognormal, s = 0.1"
        rows.append(Row(name, {planning.MAX_LOOKS: (stops / count, math.nan)}, count, most=0.06))
    return rows


def _stops_falsely(rng: np.random.Generator, num_pairs: int) -> bool:
    first, second = (lognormal(0.1).draw(rng, planning.MAX_LOOKS) for _ in range(2))
    for n in range(planning.MIN_PILOT_RUNS, planning.MAX_LOOKS + 1):
        pilots = Sample(tuple(first[:n])), Sample(tuple(second[:n]))
        look = planning.next_look(log_ratio(*pilots), pilots, num_pairs=num_pairs)
        if look and look.verdict:
            return look.verdict in DIRECTIONS
    return False
