"""Coverage of the intervals: the share of simulated studies whose 95% interval contains the truth."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from timetrial.runner.results.analysis import stats
from timetrial.runner.results.analysis.comparison import compare
from timetrial.runner.results.analysis.failures import ExpectedTimeRatio, Outcomes
from timetrial.runner.results.analysis.intervals import (
    Interval,
    Sample,
    arithmetic_mean,
    geometric_mean,
    geometric_ratio,
    log_mean,
    log_ratio,
)  # fmt: skip
from timetrial.runner.results.analysis.scores import combine_fixed
from timetrial.runner.results.analysis.validity import mean_energy

from . import share_rows
from .rows import SIZES, Row, coverage
from .scenarios import Scenario, all_scenarios, fail, few_epochs, lognormal, normal, run_group, with_energy

_CAP = 20.0  # seconds at which simulated runs are given up; a converged run takes about 12
_PARTS = (0.02, 0.1, 0.3)  # deviations of the log speed ratio from workload to workload


def mean_rows(replicates: int, seed: int) -> list[Row]:
    """Geometric and arithmetic means, and MLPerf's olympic mean, of one group."""
    rows = []
    for number, scenario in enumerate(all_scenarios()):
        rng = np.random.default_rng([seed, number])
        groups = {n: [scenario.draw(rng, n) for _ in range(replicates)] for n in SIZES}
        for kind, mean_of in (("geometric", geometric_mean), ("arithmetic", arithmetic_mean)):
            cells = {
                n: coverage([mean_of(values, floor=scenario.floor(values)) for values in same], getattr(scenario, kind))
                for n, same in groups.items()
            }
            rows.append(Row(f"{kind} mean; {scenario.name}", cells, replicates, scenario.least))
        cells = {n: _olympic_coverage(scenario, groups[n], rng) for n in SIZES[1:]}
        rows.append(Row(f"olympic mean; {scenario.name}", cells, replicates, scenario.least))
    return sorted(rows, key=lambda row: ("geometric", "arithmetic", "olympic").index(row.name.split()[0]))


def _olympic_coverage(
    scenario: Scenario, groups: Sequence[np.ndarray], rng: np.random.Generator
) -> tuple[float, float]:
    """The truth is the score that the rule gives on average."""
    n = len(groups[0])
    truth = np.sort(scenario.draw(rng, 200_000 * n).reshape(-1, n), axis=1)[:, 1:-1].mean()
    scores = [stats.olympic_interval(list(values), Sample(tuple(values), scenario.floor(values))) for values in groups]
    return coverage([score for score in scores if score], float(truth))


def ratio_rows(replicates: int, seed: int) -> list[Row]:
    """Ratios of geometric means of two groups, with equal and unequal spread and size."""
    same = [(scenario.name, (scenario, scenario), lambda n: (n, n)) for scenario in all_scenarios()]
    wide, narrow = lognormal(0.3), lognormal(0.02)
    unequal = [
        ("lognormal, s = 0.3 against 0.02", (wide, narrow), lambda n: (n, n)),
        ("lognormal, s = 0.3 against 0.05, n against 4 n runs", (wide, lognormal(0.05)), lambda n: (n, 4 * n)),
        ("lognormal, s = 0.1, n against 20 runs", (lognormal(0.1), lognormal(0.1)), lambda n: (n, 20)),
        ("epochs {3, 4, 5} against normal", (few_epochs(), normal()), lambda n: (n, n)),
    ]
    rows = []
    for number, (name, scenarios, sizes) in enumerate([*same, *unequal]):
        rng = np.random.default_rng([seed, 100 + number])
        truth = scenarios[0].geometric / scenarios[1].geometric
        cells = {n: coverage(_draw_ratios(rng, scenarios, sizes(n), replicates), truth) for n in SIZES}
        rows.append(Row(f"ratio; {name}", cells, replicates, 0.93 if number < len(same) else 0.9))
    return rows


def _draw_ratios(
    rng: np.random.Generator, scenarios: tuple[Scenario, Scenario], sizes: tuple[int, int], replicates: int
) -> list[Interval]:
    ratios = []
    for _ in range(replicates):
        first, second = (scenario.draw(rng, size) for scenario, size in zip(scenarios, sizes, strict=True))
        ratios.append(geometric_ratio(first, second, floors=(scenarios[0].floor(first), scenarios[1].floor(second))))
    return ratios


def paired_rows(replicates: int, seed: int) -> list[Row]:
    """Groups of equal seeds whose times correlate: the unpaired ratio, the paired one, and the correlation."""
    rows, count = [], replicates // 4
    for number, r in enumerate((0.0, 0.5, 0.9)):
        rng = np.random.default_rng([seed, 200 + number])
        cells: dict[str, dict[int, tuple[float, float]]] = {"unpaired": {}, "paired": {}, "correlation": {}}
        for n in (5, 10, 20):
            found: dict[str, list[Interval]] = {kind: [] for kind in cells}
            for _ in range(count):
                shared, own = rng.standard_normal(n), rng.standard_normal((2, n))
                times = np.exp(0.04 * (math.sqrt(r) * shared + math.sqrt(1 - r) * own))
                groups = [run_group(name, [10] * n, times[side]) for side, name in enumerate("ab")]
                for group in groups:
                    for index, run in enumerate(group.runs):
                        run.seed = index
                comparison = compare(*groups)
                found["unpaired"].append(log_ratio(*(Sample(tuple(side)) for side in times)).interval())
                found["paired"] += [comparison.paired] if comparison.paired else []
                found["correlation"] += [comparison.correlation] if comparison.correlation else []
            for kind, intervals in found.items():
                cells[kind][n] = coverage(intervals, r if kind == "correlation" else 1.0)
        rows += [Row(f"equal seeds, correlation {r:g}; {kind}", of_kind, count, 0.9) for kind, of_kind in cells.items()]
    return rows


def failure_rows(replicates: int, seed: int) -> list[Row]:
    """Success rate, expected time to a success and restricted mean, where runs fail at a cap."""
    rows, count = [], replicates // 2
    mean = 12 * math.exp(0.005)
    for number, failing in enumerate((0.1, 0.2, 0.3)):
        rng = np.random.default_rng([seed, 300 + number])
        truths = {"success rate": 1 - failing, "expected time": mean + failing / (1 - failing) * _CAP}
        truths |= {"restricted mean": (1 - failing) * mean + failing * _CAP, "ratio of expected times": 1.0}
        cells: dict[str, dict[int, tuple[float, float]]] = {kind: {} for kind in truths}
        for n in SIZES[1:]:
            found: dict[str, list[Interval]] = {kind: [] for kind in truths}
            for _ in range(count):
                first, second = (_draw_outcomes(rng, n, failing) for _ in range(2))
                found["success rate"].append(first.success_rate())
                found["expected time"].append(first.expected_time())
                found["restricted mean"].append(first.restricted_mean(_CAP))
                found["ratio of expected times"].append(ExpectedTimeRatio(first, second).interval())
            for kind, intervals in found.items():
                cells[kind][n] = coverage(intervals, truths[kind])
        rows += [Row(f"{failing:.0%} of runs fail; {kind}", of_kind, count, 0.9) for kind, of_kind in cells.items()]
    return rows


def _draw_outcomes(rng: np.random.Generator, n: int, failing: float) -> Outcomes:
    fails = rng.random(n) < failing
    seconds = 12 * np.exp(0.1 * rng.standard_normal(n))
    return Outcomes(tuple(seconds[~fails]), (_CAP,) * int(fails.sum()))


def score_rows(replicates: int, seed: int) -> list[Row]:
    """One number a GPU, over 2, 3 and 6 workloads with five runs each; columns are the numbers of workloads."""
    rows, studies = [], replicates // 5
    for number, deviation in enumerate(_PARTS):
        rng = np.random.default_rng([seed, 400 + number])
        cells: dict[str, dict[int, tuple[float, float]]] = {
            kind: {} for kind in ("these workloads", "further workloads", "hierarchical bootstrap (not used)")
        }
        for count in (2, 3, 6):
            found: dict[str, list[tuple[Interval, float]]] = {kind: [] for kind in cells}
            for _ in range(studies):
                logs = deviation * rng.standard_normal(count)
                runs = [np.exp(0.04 * rng.standard_normal((2, 5)) + [[log], [0.0]]) for log in logs]
                ratios = [log_ratio(Sample(tuple(first)), Sample(tuple(second))) for first, second in runs]
                found["these workloads"].append((combine_fixed(ratios).interval(), math.exp(logs.mean())))
                elsewhere = log_mean(Sample(tuple(math.exp(ratio.log) for ratio in ratios))).interval()
                found["further workloads"].append((elsewhere, 1.0))
                found["hierarchical bootstrap (not used)"].append((_bootstrap(rng, np.log(runs)), 1.0))
            for kind, pairs in found.items():
                scaled = [interval.scaled(1 / truth) for interval, truth in pairs]
                cells[kind][count] = coverage(scaled, 1.0)
        for kind, of_kind in cells.items():
            least = None if "not used" in kind else 0.93
            rows.append(Row(f"speed over workloads that differ by {deviation:.0%}; {kind}", of_kind, studies, least))
    return rows


def _bootstrap(rng: np.random.Generator, logs: np.ndarray) -> Interval:
    """Return the percentile interval of resampled workloads and runs; `logs` is (workloads, 2, runs)."""
    count, _, runs = logs.shape
    workloads = rng.integers(count, size=(500, count, 1))
    picks = rng.integers(runs, size=(2, 500, count, runs))
    first, second = (logs[workloads, side, picks[side]].mean(axis=2) for side in (0, 1))
    low, middle, high = np.exp(np.quantile((first - second).mean(axis=1), (0.025, 0.5, 0.975)))
    return Interval(float(middle), float(low), float(high), count)


def repeat_rows(replicates: int, seed: int) -> list[Row]:
    """Every seed run twice or five times: the olympic mean, the mean energy, and the success rate."""
    rows, count = [], replicates // 4
    for number, repeats in enumerate((2, 5)):
        rng = np.random.default_rng([seed, 520 + number])
        cells: dict[str, dict[int, tuple[float, float]]] = {"olympic mean": {}, "energy": {}, "success rate": {}}
        for n in SIZES[1:]:
            found: dict[str, list[Interval]] = {kind: [] for kind in cells}
            for _ in range(count):
                seeds = np.tile(np.arange(n), repeats)
                times = np.exp(0.1 * rng.standard_normal(n))
                group = run_group("a", np.round(1000 * times)[seeds], [1.0] * len(seeds), seeds=seeds.tolist())
                if (score := group.score_interval) is not None:
                    found["olympic mean"].append(score.scaled(60 / 1000))
                found["energy"].append(mean_energy(with_energy(group, watts=1.0)).scaled(1 / 1000))
                fails = rng.random(n) < 0.2
                for run, seed_of_run in zip(group.runs, seeds, strict=True):
                    if fails[seed_of_run]:
                        fail(run, 2000.0)
                failing = run_group("b", [], [])
                failing.runs += group.runs
                found["success rate"].append(failing.outcomes.success_rate())
            cells["olympic mean"][n] = coverage(found["olympic mean"], 1.0)
            cells["energy"][n] = coverage(found["energy"], lognormal(0.1).arithmetic)
            cells["success rate"][n] = coverage(found["success rate"], 0.8)
        rows += [
            Row(f"every seed run {repeats} times, columns are seeds; {kind}", of_kind, count, 0.9)
            for kind, of_kind in cells.items()
        ]
    return rows


TABLES: dict[str, Sequence[Callable[[int, int], list[Row]]]] = {
    "One group": (mean_rows, failure_rows, repeat_rows),
    "Two groups": (ratio_rows, paired_rows),
    "Several workloads and factors": (score_rows, *share_rows.ALL),
}
