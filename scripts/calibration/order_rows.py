"""Frequencies of false verdicts where runs of a machine are not independent: correlated paces, drift, disturbance."""

import math
from collections.abc import Callable

import numpy as np

from timetrial.runner.record import validity
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis.comparison import Comparison, compare
from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.planning import MAX_LOOKS, MIN_PILOT_RUNS
from timetrial.runner.results.analysis.ranking import rank_round

from .rows import SIZES, Row, coverage
from .scenarios import DIRECTIONS, PACE_CV, Array, is_directed, run_group

_PACE_DEVIATION = 0.04  # of correlated paces
_CORRELATION = 0.5
_HOST = "one host"


def correlated_rows(replicates: int, seed: int) -> list[Row]:
    """Equal sides whose successive runs correlate: one machine a side, one machine in blocks, one machine in turn."""
    rows, count = [], replicates // 4
    designs: tuple[tuple[str, Callable[[np.random.Generator, int], Comparison]], ...] = (
        ("one machine a side", _on_two_machines),
        ("one machine, all of a, then all of b", _in_blocks),
        ("one machine, a and b in turn", _in_turn),
    )
    for number, (name, draw) in enumerate(designs):
        rng = np.random.default_rng([seed, 740 + number])
        cells = {n: (sum(is_directed(draw(rng, n)) for _ in range(count)) / count, math.nan) for n in SIZES}
        rows.append(Row(f"successive paces correlate by 0.5, s = 0.04; {name}", cells, count, most=0.06))
    return rows


def pace_rows(replicates: int, seed: int) -> list[Row]:
    """Equal sides whose successive runs correlate: the time per epoch, and the lead of one of two ranked entries."""
    count = replicates // 4
    rng = np.random.default_rng([seed, 743])
    drawn = {n: [_on_two_machines(rng, n) for _ in range(count)] for n in SIZES[1:]}
    paces = {n: coverage([pair.seconds_per_epoch for pair in same], 1.0) for n, same in drawn.items()}
    leads = {n: (sum(map(_has_lead, same)) / count, math.nan) for n, same in drawn.items()}
    name = "successive paces correlate by 0.5, s = 0.04; one machine a side"
    return [
        Row(f"{name}; the interval of the time per epoch contains the truth", paces, count, least=0.93),
        Row(f"{name}; a lead in a ranking of the two is called beyond luck", leads, count, most=0.06),
    ]


def _has_lead(comparison: Comparison) -> bool:
    (ranking,) = rank_round([comparison.baseline, comparison.other])
    return ranking.entries[0].verdict in DIRECTIONS


def _on_two_machines(rng: np.random.Generator, n: int) -> Comparison:
    return compare(*(_sequence(side, _correlated(rng, n), np.arange(n), f"host {side}") for side in "ab"))


def _in_blocks(rng: np.random.Generator, n: int) -> Comparison:
    logs = _correlated(rng, 2 * n)
    return compare(_sequence("a", logs[:n], np.arange(n)), _sequence("b", logs[n:], np.arange(n, 2 * n)))


def _in_turn(rng: np.random.Generator, n: int) -> Comparison:
    logs, order = _correlated(rng, 2 * n), np.arange(2 * n)
    return compare(_sequence("a", logs[::2], order[::2]), _sequence("b", logs[1::2], order[1::2]))


def _correlated(rng: np.random.Generator, n: int) -> Array:
    """Return the log paces of n successive runs, an autoregressive process of order one."""
    logs = rng.standard_normal(n)
    for index in range(1, n):
        logs[index] = _CORRELATION * logs[index - 1] + math.sqrt(1 - _CORRELATION**2) * logs[index]
    return _PACE_DEVIATION * logs


def _sequence(name: str, log_paces: Array, order: Array, host: str = _HOST, epochs: Array | float = 1000.0) -> RunGroup:
    """Return a side whose runs started in this order; epochs so many that their grid does not count."""
    n = len(log_paces)
    group = run_group(name, np.broadcast_to(epochs, n), 60 * np.exp(log_paces), [host] * n)
    for run, position in zip(group.runs, order, strict=True):
        run.started = float(position)
    return group


def drift_rows(replicates: int, seed: int) -> list[Row]:
    """Equal sides on a machine on which each run is slower than the last."""
    rows, count = [], replicates // 4
    for number, (slope, deviation) in enumerate(((0.01, 0.04), (0.01, 0.0), (0.003, 0.02))):
        rng = np.random.default_rng([seed, 745 + number])
        cells = {}
        for n in SIZES:
            drawn = (_drifting(rng, n, slope, deviation) for _ in range(count))
            cells[n] = sum(map(is_directed, drawn)) / count, math.nan
        name = f"each run {slope:.1%} slower than the last, epochs CV {deviation:.0%}; all of a, then all of b"
        rows.append(Row(name, cells, count, most=0.06))
    return rows


def _drifting(rng: np.random.Generator, n: int, slope: float, deviation: float) -> Comparison:
    order = np.arange(2 * n)
    logs = slope * order + PACE_CV * rng.standard_normal(2 * n)
    epochs = np.round(1000 * np.exp(deviation * rng.standard_normal(2 * n)))
    sides = (slice(0, n), slice(n, 2 * n))
    return compare(
        *(_sequence(name, logs[part], order[part], epochs=epochs[part]) for name, part in zip("ab", sides, strict=True))
    )


def sequential_rows(replicates: int, seed: int) -> list[Row]:
    """Equal sides on machines of their own whose successive runs correlate, looked at after every run."""
    count = replicates // 10
    rng = np.random.default_rng([seed, 750])
    stops = 0
    for _ in range(count):
        sides = [_sequence(side, _correlated(rng, MAX_LOOKS), np.arange(MAX_LOOKS), f"host {side}") for side in "ab"]
        stops += _stops_falsely(*sides)
    cells = {MAX_LOOKS: (stops / count, math.nan)}
    return [Row("equal groups; successive paces correlate by 0.5, s = 0.04", cells, count, most=0.06)]


def _stops_falsely(first: RunGroup, second: RunGroup) -> bool:
    for n in range(MIN_PILOT_RUNS, MAX_LOOKS + 1):
        sides = (RunGroup(side.round, "", side.system, side.benchmark, "", side.runs[:n]) for side in (first, second))
        look = compare(*sides).next_look(1)
        if look and look.verdict:
            return look.verdict in DIRECTIONS
    return False


def disturbed_rows(replicates: int, seed: int) -> list[Row]:
    """Equal sides, one of which is slowed by other work in a share of its time that is known."""
    rows, count = [], replicates // 4
    for number, (share, bound) in enumerate(((0.1, 0.1), (0.5, 0.5), (0.9, 1.0))):
        rng = np.random.default_rng([seed, 755 + number])
        cells = {}
        for n in SIZES:
            drawn = (_disturbed(rng, n, share, bound) for _ in range(count))
            cells[n] = sum(map(is_directed, drawn)) / count, math.nan
        known = "nothing bounds it" if bound == 1.0 else "this share is known"
        rows.append(Row(f"{share:.0%} of the time of one side is lost to other work; {known}", cells, count, most=0.06))
    return rows


def _disturbed(rng: np.random.Generator, n: int, share: float, bound: float) -> Comparison:
    calm, busy = (
        run_group(side, [1000.0] * n, 60 * np.exp(0.01 * rng.standard_normal(n)), seeds=range(n)) for side in "ab"
    )
    for run in busy.runs:
        run.duration = run.observed = run.observed / (1 - share)
        run.flags = [validity.LOADER_BOUND]
        run.run_record = RunRecord(disturbed_share=bound)
    return compare(calm, busy)
