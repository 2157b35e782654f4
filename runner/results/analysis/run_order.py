"""The order of runs on a machine: whether two settings ran in turn, and whether the pace of the machine drifts.

In blocks, all runs of one setting and then all of the other, a drift of the machine looks like an effect.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit

from ...record.attempt import Attempt
from ..parse.runs import Run
from . import samples
from .distortion import Distortion
from .findings import Finding, FindingKind
from .groups import RunGroup
from .throughput_groups import ThroughputGroup, flatten_settings

_Item = TypeVar("_Item")
_MIN_RUNS = 2  # of each setting on one machine
_MIN_TREND_RUNS = 4
_ALPHA = 0.05  # of the test for drift between two sides
_TREND_ALPHA = 0.01  # of the test for a trend in one group, of which a report has many


@dataclass(frozen=True)
class Trend:
    """Change of the log pace from one run to the next, with its standard error, degrees of freedom and p value."""

    slope: float
    error: float
    dof: int
    p_value: float


def in_order(items: Sequence[_Item], starts: Sequence[float]) -> list[_Item]:
    """Return the items in the order of their start times; none if that is not known of all."""
    is_known = len(starts) == len(items) == len(set(starts)) and all(map(math.isfinite, starts))
    return [items[index] for index in np.argsort(starts)] if is_known else []


def runs_in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order in which they started; none if that is not known of all."""
    return in_order(runs, [run.started for run in runs])


def is_interleaved(first: Sequence[Run], second: Sequence[Run]) -> bool:
    """Return whether two sides ran in turn on one machine, so that neither drift nor correlation favors one."""
    if not samples.is_one_machine([*first, *second]):
        return False
    return alternate(*([run.started for run in side] for side in (first, second)))


def alternate(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether runs with these start times alternate, with few exceptions."""
    sides = in_order([0] * len(first) + [1] * len(second), [*first, *second])
    return sum(a != b for a, b in pairwise(sides)) >= max(1.5 * min(len(first), len(second)), 1)


def fit_trend(*series: Sequence[tuple[int, Run]]) -> Trend | None:
    """Return the common slope of log pace over position in series of runs that each have a mean of their own.

    None if fewer than one degree of freedom is left, or if nothing varies.
    """
    known = [[(position, math.log(run.pace)) for position, run in runs if run.pace] for runs in series]
    dof = sum(map(len, known)) - len(known) - 1
    if dof < 1 or not all(known):
        return None
    centered = np.vstack([np.array(points) - np.mean(points, axis=0) for points in known])
    x, y = centered[:, 0], centered[:, 1]
    slope = float(x @ y / (x @ x))
    error = math.sqrt(float(np.sum((y - slope * x) ** 2)) / dof / float(x @ x))
    p_value = 2 * float(stdtr(dof, -abs(slope) / error)) if error else float(slope == 0)
    return Trend(slope, error, dof, p_value)


def find_drift(baseline: Sequence[Run], other: Sequence[Run]) -> Distortion | None:
    """Return what a drift of the machine that both sides share can have added to their ratio; None if none is seen."""
    ordered = runs_in_order([*baseline, *other]) if samples.is_one_machine([*baseline, *other]) else []
    positions = {id(run): position for position, run in enumerate(ordered)}
    sides = [[(positions[id(run)], run) for run in side if id(run) in positions] for side in (baseline, other)]
    trend = fit_trend(*sides) if all(sides) else None
    if trend is None or trend.p_value > _ALPHA:
        return None
    steepest = abs(trend.slope) + float(stdtrit(trend.dof, 1 - _ALPHA / 2)) * trend.error
    middles = [float(np.mean([position for position, _ in side])) for side in sides]
    shift = math.copysign(steepest, trend.slope) * (middles[1] - middles[0])
    cause = f"drift: the time per epoch changes by {math.expm1(trend.slope):+.2%} from run to run"
    return Distortion(cause, max(-shift, 0.0), max(shift, 0.0))


def _check_trend(group: RunGroup) -> Iterable[Finding]:
    """Yield a flag if the pace of the runs of one machine rises or falls in their order."""
    runs = group.converged_runs
    if len(runs) < _MIN_TREND_RUNS or not samples.is_one_machine(runs):
        return
    trend = fit_trend(list(enumerate(runs_in_order(runs))))
    if trend and trend.p_value < _TREND_ALPHA:
        yield Finding(
            FindingKind.FLAG,
            group.title,
            f"The time per epoch changes by {math.expm1(trend.slope):+.2%} from run to run (p = {trend.p_value:.2g}): "
            "the machine drifts, so compare it only with runs made in turn with these.",
        )


@dataclass(frozen=True)
class _OrderedGroup:
    """Runs with the same settings, and by machine the times at which they started."""

    settings: Mapping[str, object]
    starts: Mapping[tuple[str, str], Sequence[float]]


def check(groups: Iterable[RunGroup], throughput_groups: Iterable[ThroughputGroup]) -> list[Finding]:
    """Flag groups whose pace drifts, and each setting whose values were run in blocks: all of one, then all of another.

    Compared are training runs, and throughput runs, that differ in this setting only and ran on one machine, at least
    two of each. Published logs are not checked, because they do not name their machine.
    """
    groups = list(groups)
    return [
        *(finding for group in groups for finding in _check_trend(group)),
        *_check([group for run_group in groups if (group := _order_training(run_group))]),
        *_check([_OrderedGroup(group.settings, _starts_by_host(group.attempts)) for group in throughput_groups]),
    ]


def _order_training(group: RunGroup) -> _OrderedGroup | None:
    records = [run.run_record for run in group.runs if run.run_record is not None]
    if not records:
        return None
    settings = {"accelerator": group.runs[0].accelerator, **flatten_settings(records[0].config)}
    return _OrderedGroup(settings, _starts_by_host(record.attempts[-1] for record in records if record.attempts))


def _starts_by_host(attempts: Iterable[Attempt]) -> dict[tuple[str, str], list[float]]:
    starts: dict[tuple[str, str], list[float]] = {}
    for attempt in attempts:
        starts.setdefault(attempt.host, []).append(attempt.started_at)
    return {host: times for host, times in starts.items() if len(times) >= _MIN_RUNS}


def _check(groups: Sequence[_OrderedGroup]) -> Iterable[Finding]:
    """Yield a flag for each setting with pairs of groups that ran in blocks on all machines that they share."""
    hosts_by_setting: dict[str, list[str]] = {}
    for first, second in combinations([group for group in groups if group.starts], 2):
        shared = [host for host in first.starts if host in second.starts]
        if shared and all(_is_in_blocks(first.starts[host], second.starts[host]) for host in shared):
            settings = first.settings, second.settings
            keys = [key for key in {**settings[0], **settings[1]} if settings[0].get(key) != settings[1].get(key)]
            if len(keys) == 1:
                hosts_by_setting.setdefault(keys[0], []).append(shared[0][0])
    for key, hosts in hosts_by_setting.items():
        pairs = "two groups" if len(hosts) == 1 else f"{len(hosts)} pairs of groups"
        yield Finding(
            FindingKind.FLAG,
            key,
            f"The runs of {pairs} that differ only in {key} were made in blocks, one after the other, on "
            f"{', '.join(dict.fromkeys(hosts))}: drift (temperature, other users) cannot be told from the setting. "
            f"Run them in turn, in one sweep: `-m seed=1,2,3 {key.removesuffix('.name')}=...`.",
        )


def _is_in_blocks(first: Sequence[float], second: Sequence[float]) -> bool:
    return max(first) < min(second) or max(second) < min(first)
