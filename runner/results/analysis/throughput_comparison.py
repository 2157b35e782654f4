"""Compare throughput groups of one network together (Holm 1979): at most 5% of the calls tell equal ones apart."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from . import run_order
from .distortion import Distortion, disturbance, find_overturning
from .intervals import UNKNOWN, Interval, LogEstimate, Sample, log_ratio, rounding_floor, serial_error
from .throughput_groups import DISTURBANCES, ThroughputGroup
from .verdicts import ALONE, MARGIN, Levels, Verdict, decide, family_levels


@dataclass(frozen=True)
class ThroughputComparison:
    """Two groups of the same network; `speed` is the ratio of training samples per second, other over baseline.

    `differences` are the keys of the settings in which they differ, `levels` are those of the test among all pairs.
    """

    baseline: ThroughputGroup
    other: ThroughputGroup
    differences: list[str]
    speed: LogEstimate
    levels: Levels = ALONE

    @property
    def interval(self) -> Interval:
        """The interval of `speed` at the level of the verdict."""
        return self.speed.interval(self.levels.difference) if self.speed.n else UNKNOWN

    @property
    def verdict(self) -> Verdict:
        """The verdict on the other group; no more than holds in spite of `distorting`."""
        return Verdict.CANNOT_TELL if self.distorting else decide(self.speed, levels=self.levels)

    @cached_property
    def distorting(self) -> Distortion | None:
        """The disturbance that may have made the difference, or hidden it; None if the verdict withstands."""
        sides = (self.baseline, self.other)
        down, up = (statistics.fmean(side.lost_logs) if side.lost_logs else 0.0 for side in sides)
        found = disturbance(sorted(sides[0].flags | sides[1].flags), down, up, DISTURBANCES)
        return find_overturning(self.speed, [found], MARGIN, self.levels) if self.speed.n else None


def compare_closest(
    baselines: Sequence[ThroughputGroup], others: Sequence[ThroughputGroup]
) -> list[ThroughputComparison]:
    """Compare each of `others` with those baselines that have the same network and the fewest differences."""
    closest = []
    for other in others:
        comparisons = [_compare(baseline, other) for baseline in baselines if baseline.network == other.network]
        fewest = min((len(comparison.differences) for comparison in comparisons), default=0)
        closest += [comparison for comparison in comparisons if len(comparison.differences) == fewest]
    return _test_together(closest)


def _test_together(comparisons: Sequence[ThroughputComparison]) -> list[ThroughputComparison]:
    levels = family_levels([comparison.speed for comparison in comparisons])
    return [replace(comparison, levels=level) for comparison, level in zip(comparisons, levels, strict=True)]


def _compare(baseline: ThroughputGroup, other: ThroughputGroup) -> ThroughputComparison:
    settings = [group.settings | group.executed for group in (baseline, other)]
    differences = [
        key for key in dict.fromkeys([*settings[0], *settings[1]]) if settings[0].get(key) != settings[1].get(key)
    ]
    return ThroughputComparison(baseline, other, differences, _speed(baseline, other))


def _speed(baseline: ThroughputGroup, other: ThroughputGroup) -> LogEstimate:
    """Return the ratio of the rates; successive runs may correlate, unless the groups ran in turn on one machine."""
    rates = [group.samples_per_second for group in (other, baseline)]
    speed = log_ratio(*(Sample(tuple(values), rounding_floor(values)) for values in rates))
    starts = [[attempt.started_at for attempt in group.attempts] for group in (other, baseline)]
    hosts = {attempt.host for group in (other, baseline) for attempt in group.attempts}
    if len(hosts) == 1 and run_order.alternate(*starts):
        return speed
    in_order = map(run_order.in_order, rates, starts)
    return replace(speed, error=math.hypot(speed.error, *map(serial_error, in_order)))


def compare_peer_to_peer(groups: Sequence[ThroughputGroup]) -> list[ThroughputComparison]:
    """Compare peer-to-peer transfers with none for every two groups that differ in nothing else."""
    multi_gpu = [group for group in groups if group.num_accelerators > 1]
    enabled, disabled = (
        [group for group in multi_gpu if group.config["peer_to_peer"] is state] for state in (True, False)
    )
    pairs = ((baseline, other) for other, baseline in product(enabled, disabled) if baseline.network == other.network)
    comparisons = [_compare(*pair) for pair in pairs]
    return _test_together([comparison for comparison in comparisons if len(comparison.differences) == 1])
