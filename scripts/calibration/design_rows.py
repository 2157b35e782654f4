"""Frequencies of false verdicts for designs beyond n equal runs a side: machines, shared seeds, sizes, failures."""

import math

import numpy as np

from timetrial.runner.results.analysis.comparison import Basis, Comparison, Machines, compare
from timetrial.runner.results.analysis.external_comparison import compare_systems
from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.verdicts import Verdict
from timetrial.runner.results.parse.external import ExternalMeasurement
from timetrial.runner.results.report.speed_text import external_summary

from .rows import SIZES, Row, coverage
from .scenarios import Array, draw_group, fail, is_directed, lognormal, run_group

_MACHINE_SDS = (0.01, 0.05)  # of the log speed of machines with the same GPU


def machine_rows(replicates: int, seed: int) -> list[Row]:
    """Equal GPUs in machines whose speeds differ: verdicts about GPUs, and about the two machines."""
    rows, count = [], replicates // 4
    for number, (deviation, machines) in enumerate((sd, machines) for sd in _MACHINE_SDS for machines in (1, 2, 4)):
        rng = np.random.default_rng([seed, 640 + number])
        cells = {}
        for n in SIZES[1:]:
            drawn = [compare(*(_on_machines(rng, side, machines, n, deviation) for side in "ab")) for _ in range(count)]
            cells[n] = sum(map(is_directed, drawn)) / count, math.nan
        if machines == 1:
            about = '1 machine a side, called "between these two machines", which do differ'
            rows.append(Row(f"speeds differ by {deviation:.0%}; {about}", cells, count))
        else:
            about = f"{machines} machines a side with n runs each, about GPUs"
            rows.append(Row(f"speeds differ by {deviation:.0%}; {about}", cells, count, most=0.06))
    return rows


def _on_machines(
    rng: np.random.Generator, side: str, machines: int, n: int, deviation: float, epochs: Array | float = 100.0
) -> RunGroup:
    speeds = np.repeat(deviation * rng.standard_normal(machines), n)
    paces = 60 * np.exp(speeds + 0.003 * rng.standard_normal(machines * n))
    hosts = [f"{side}{number}" for number in range(machines) for _ in range(n)]
    return run_group(side, np.broadcast_to(epochs, machines * n), paces, hosts)


def few_machine_rows(replicates: int, seed: int) -> list[Row]:
    """Equal GPUs on two machines a side: the time per epoch, and verdicts where epochs are on a coarse grid."""
    rows, count = [], replicates // 4
    rng = np.random.default_rng([seed, 646])
    paces = {}
    for n in SIZES[1:]:
        drawn = [compare(*(_on_machines(rng, side, 2, n, 0.03) for side in "ab")) for _ in range(count)]
        paces[n] = coverage([comparison.seconds_per_epoch for comparison in drawn], 1.0)
    name = (
        "speeds differ by 3%; 2 machines a side with n runs each; the interval of the time per epoch contains the truth"
    )
    rows.append(Row(name, paces, count, least=0.93))
    for number, (low, high, share) in enumerate(((10.0, 20.0, 0.8), (4.0, 5.0, 0.8), (10.0, 20.0, 0.9))):
        rng = np.random.default_rng([seed, 647 + number])
        cells = {}
        for n in SIZES[:3]:
            drawn = [
                compare(*(_with_few_epochs(rng, side, n, low, high, share) for side in "ab")) for _ in range(count)
            ]
            cells[n] = sum(map(is_directed, drawn)) / count, math.nan
        name = f"epochs {low:g} ({share:.0%}) or {high:g}; 2 machines a side with n runs each, about GPUs"
        rows.append(Row(name, cells, count, most=0.06))
    return rows


def _with_few_epochs(rng: np.random.Generator, side: str, n: int, low: float, high: float, share: float) -> RunGroup:
    return _on_machines(rng, side, 2, n, 0.003, np.where(rng.random(2 * n) < share, low, high))


def shared_seed_rows(replicates: int, seed: int) -> list[Row]:
    """Equal GPUs, the same n seeds on several machines of a side: verdicts about GPUs."""
    rows, count = [], replicates // 4
    designs = [(machines, deviation) for machines in (2, 3) for deviation in (0.03, 0.06, 0.12)]
    for number, (machines, deviation) in enumerate(designs):
        rng = np.random.default_rng([seed, 650 + number])
        cells = {}
        for n in SIZES:
            drawn = [
                compare(*(_seeds_on_machines(rng, side, machines, n, deviation) for side in "ab")) for _ in range(count)
            ]
            cells[n] = sum(map(is_directed, drawn)) / count, math.nan
        name = f"n seeds, epochs CV {deviation:.0%}, each on all {machines} machines of a side, 1% apart"
        rows.append(Row(name, cells, count, most=0.06))
    return rows


def _seeds_on_machines(rng: np.random.Generator, side: str, machines: int, n: int, deviation: float) -> RunGroup:
    epochs = np.round(100 * np.exp(deviation * rng.standard_normal(n)))
    speeds = np.repeat(0.01 * rng.standard_normal(machines), n)
    paces = 60 * np.exp(speeds + 0.003 * rng.standard_normal(machines * n))
    first = 0 if side == "a" else 1000  # other seeds on the other side
    hosts = [f"{side}{number}" for number in range(machines) for _ in range(n)]
    return run_group(side, np.tile(epochs, machines), paces, hosts, [first + index for index in range(n)] * machines)


def unequal_size_rows(replicates: int, seed: int) -> list[Row]:
    """Equal groups, one of n runs and one of more."""
    rows = []
    for number, size in enumerate((5, 10, 20)):
        rng = np.random.default_rng([seed, 670 + number])
        cells = {}
        for n in (2, 3, 4):
            drawn = (
                compare(draw_group(rng, "a", lognormal(0.1), n), draw_group(rng, "b", lognormal(0.1), size))
                for _ in range(replicates // 3)
            )
            cells[n] = sum(map(is_directed, drawn)) / (replicates // 3), math.nan
        rows.append(Row(f"n runs against {size}; lognormal, s = 0.1", cells, replicates // 3, most=0.06))
    return rows


def margin_rows(replicates: int, seed: int) -> list[Row]:
    """Epochs and time per epoch that both differ by 4%, which each alone is within the margin of 5%."""
    count = replicates // 4
    apart: dict[int, tuple[float, float]] = {}
    covered: dict[int, tuple[float, float]] = {}
    for number, n in enumerate(SIZES):
        rng = np.random.default_rng([seed, 675 + number])
        drawn = [compare(_slower(rng, n, 1.0, 1.0), _slower(rng, n, 1.04, 1.04)) for _ in range(count)]
        apart[n] = sum(comparison.verdict == Verdict.EQUAL for comparison in drawn) / count, math.nan
        drawn = [compare(_slower(rng, n, 1.0, 1.0), _slower(rng, n, 1.04, 0.96)) for _ in range(count)]
        truth = 1 / (1.04 * 0.96)
        covered[n] = sum(comparison.time.low <= truth <= comparison.time.high for comparison in drawn) / count, math.nan
    return [
        Row("epochs and time per epoch 4% higher, 8.2% in all: called equal", apart, count, most=0.06),
        Row("epochs 4% higher, time per epoch 4% lower: the interval contains the truth", covered, count, least=0.93),
    ]


def _slower(rng: np.random.Generator, n: int, epochs: float, pace: float) -> RunGroup:
    counts = np.round(1000 * epochs * np.exp(0.02 * rng.standard_normal(n)))
    return run_group("a" if epochs == 1.0 else "b", counts, 60 * pace * np.exp(0.003 * rng.standard_normal(n)))


def failure_rows(replicates: int, seed: int) -> list[Row]:
    """Equal groups in which runs fail that cost up to eight times what a success does."""
    rows, count = [], replicates // 4
    for number, (name, success, costs) in enumerate(
        (
            ("80% succeed, failures take 40 to 100 epochs and successes 12", 0.8, (40.0, 100.0)),
            ("80% succeed, half of the failures after 1 epoch, half after 60", 0.8, (1.0, 60.0)),
            ("60% succeed, failures take 60 epochs and successes 12", 0.6, (60.0, 60.0)),
        )
    ):
        rng = np.random.default_rng([seed, 690 + number])
        cells = {}
        for n in SIZES:
            drawn = (compare(*(_failing(rng, side, n, success, costs) for side in "ab")) for _ in range(count))
            cells[n] = sum(map(is_directed, drawn)) / count, math.nan
        rows.append(Row(name, cells, count, most=0.06))
    return rows


def _failing(rng: np.random.Generator, name: str, n: int, success: float, costs: tuple[float, float]) -> RunGroup:
    group = run_group(name, np.round(12 * np.exp(0.1 * rng.standard_normal(n))), [60.0] * n)
    for run in group.runs:
        if rng.random() > success:
            cost = rng.choice(costs) if costs[0] == 1.0 else rng.uniform(*costs)
            fail(run, 60 * cost)
    return group


def reliability_rows(replicates: int, seed: int) -> list[Row]:
    """Equal expected times of a side that succeeds more often and one whose successes are faster."""
    count, cost = replicates // 4, 20.0
    rng = np.random.default_rng([seed, 695])
    reliable = 12 * math.exp(0.005) + 0.05 / 0.95 * cost
    epochs = (reliable - 0.2 / 0.8 * cost) / math.exp(0.005)  # of a success of the other side
    cells: dict[str, dict[int, tuple[float, float]]] = {"all": {}, "failed": {}}
    for n in SIZES:
        pairs = [
            compare(_reliable(rng, n, 0.95, 12.0, cost), _reliable(rng, n, 0.8, epochs, cost)) for _ in range(count)
        ]
        failed = [pair for pair in pairs if pair.basis is Basis.EXPECTED_TIME]
        cells["all"][n] = sum(map(is_directed, pairs)) / count, math.nan
        cells["failed"][n] = sum(map(is_directed, failed)) / max(len(failed), 1), math.nan
    name = "95% succeed against 80%, equal expected times"
    return [
        Row(f"{name}; studies in which a run fails", cells["failed"], count // 2, most=0.06),
        Row(f"{name}; all studies, among them those whose runs all converge", cells["all"], count),
    ]


def _reliable(rng: np.random.Generator, n: int, success: float, epochs: float, cost: float) -> RunGroup:
    """Return runs that vary by 10%, on a grid so fine that it does not count, and fail after `cost` epochs."""
    group = run_group(f"{success:.0%}", np.round(100 * epochs * np.exp(0.1 * rng.standard_normal(n))), [0.6] * n)
    for run in group.runs:
        if rng.random() > success:
            fail(run, 60 * cost)
    return group


def host_name_rows(replicates: int, seed: int) -> list[Row]:
    """Machines that differ by 6%, one a side, whose runs carry another host name each, as those of containers do."""
    count = replicates // 4
    rng = np.random.default_rng([seed, 698])
    cells = {}
    for n in SIZES:
        found = 0
        for _ in range(count):
            sides = []
            for side in "ab":
                paces = 60 * np.exp(0.06 * rng.standard_normal() + 0.003 * rng.standard_normal(n))
                group = run_group(side, [100.0] * n, paces, [f"{side}{number}" for number in range(n)])
                for run in group.runs:
                    run.gpu_ids = frozenset()
                sides.append(group)
            comparison = compare(*sides)
            found += is_directed(comparison) and comparison.machines is Machines.SAMPLED
        cells[n] = found / count, math.nan
    name = "one machine a side, 6% apart, another host name a run: a verdict that claims to be about GPUs"
    return [Row(name, cells, count, most=0.06)]


def table_rows(replicates: int, seed: int) -> list[Row]:
    """Tables of others: networks measured once on one machine a side, whose speeds differ; columns are networks.

    A verdict is about these two machines and says so: it is right if it is about their ratio.
    """
    rows, count = [], replicates // 4
    for number, deviation in enumerate((0.03, 0.05)):
        rng = np.random.default_rng([seed, 710 + number])
        wider: dict[int, tuple[float, float]] = {}
        covered: dict[int, tuple[float, float]] = {}
        for n in (3, 5, 10, 20):
            drawn = [_two_tables(rng, n, deviation) for _ in range(count)]
            wider[n] = sum("between these machines" not in summary for summary, _ in drawn) / count, math.nan
            covered[n] = sum(is_covered for _, is_covered in drawn) / count, math.nan
        name = f"tables of n networks measured once, one machine a side, {deviation:.0%} apart"
        rows.append(Row(f"{name}; a sentence that claims to be about GPUs", wider, count, most=0.06))
        rows.append(Row(f"{name}; the interval contains the ratio of these machines", covered, count, least=0.93))
    return rows


def _two_tables(rng: np.random.Generator, n: int, deviation: float) -> tuple[str, bool]:
    """Return the sentence on two tables, and whether its interval contains the ratio of the machines' speeds."""
    speeds = deviation * rng.standard_normal(2)
    logs = 7 + speeds[:, None] + rng.standard_normal(n) + 0.02 * rng.standard_normal((2, n))
    measurements = [
        ExternalMeasurement(
            *("simulated", "simulated", "2026", f"network {number}", "train", gpu, 1, "fp32", "", 64),
            *("samples_per_second", float(f"{math.exp(of_gpu[number]):.3f}"), "measured", "", ""),
        )
        for gpu, of_gpu in zip("ab", logs, strict=True)
        for number in range(n)
    ]
    (comparison,) = compare_systems(measurements, [])
    truth = math.exp(speeds[1] - speeds[0])
    return external_summary(comparison), comparison.interval.low <= truth <= comparison.interval.high


def arithmetic_rows(replicates: int, seed: int) -> list[Row]:
    """A side that always takes 15 epochs and one that takes 10 or 20, with which speeds differ by the mean taken."""
    count = replicates // 4
    rng = np.random.default_rng([seed, 699])
    cells = {}
    for n in SIZES:
        drawn = (compare(run_group("a", [15.0] * n, [60.0] * n), _two_valued(rng, n)) for _ in range(count))
        cells[n] = sum(comparison.verdict is Verdict.SLOWER for comparison in drawn) / count, math.nan
    name = "always 15 epochs against 10 or 20, which are 6% faster as a geometric mean: called slower"
    return [Row(name, cells, count, most=0.06)]


def _two_valued(rng: np.random.Generator, n: int) -> RunGroup:
    return run_group("b", rng.choice((10.0, 20.0), n), [60.0] * n)


def pair_power_rows(replicates: int, seed: int) -> list[Row]:
    """The same seeds on both sides, one of which is 5% faster: how often it is called faster, or an equal one is."""
    rows, count = [], replicates // 4
    for number, correlation in enumerate((0.0, 0.8)):
        rng = np.random.default_rng([seed, 688 + number])
        for speed, most in ((1.05, None), (1.0, 0.06)):
            cells = {}
            for n in SIZES:
                drawn = (_equal_seeds(rng, n, correlation, speed) for _ in range(count))
                cells[n] = sum(map(is_directed, drawn)) / count, math.nan
            what = "5% faster" if speed > 1 else "equal"
            name = f"{what}, the same seeds on both sides, correlation {correlation:g}; CV 4%"
            rows.append(Row(name, cells, count, most=most))
    return rows


def _equal_seeds(rng: np.random.Generator, n: int, correlation: float, speed: float) -> Comparison:
    shared, own = rng.standard_normal(n), rng.standard_normal((2, n))
    logs = 0.04 * (math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own)
    epochs = np.round(1000 * np.exp(logs))
    return compare(
        run_group("a", epochs[0], [60.0] * n, seeds=range(n)),
        run_group("b", epochs[1], [60.0 / speed] * n, seeds=range(n)),
    )
