"""Compare run groups with a baseline: which is faster to the target, and whether it is luck.

Time-to-train is epochs times time per epoch, run by run. The epochs reflect the recipe and the luck of the seed, the
time per epoch the speed of hardware and software. The measured time-to-train decides, even where a test has shown
the epochs to be equal within the margin: the time per epoch alone would leave out that they differ within it. Every
ratio is baseline over other: above 1, the other is faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from . import planning, samples
from .failures import ExpectedTimeRatio
from .group_differences import list_recipe_differences, workload_difference
from .groups import RunGroup
from .intervals import (
    UNKNOWN,
    Interval,
    LogEstimate,
    Ratio,
    Sample,
    crossed_mean,
    is_equal_within,
    log_mean,
    log_ratio,
    ratio_of,
)
from .planning import NextLook
from .verdicts import MARGIN, Verdict, decide, holm_levels

_MIN_PAIRS = 4  # of equal seeds, for their correlation
_MIN_RUNS = 3  # a side for a verdict: two find a difference of 10% in one study of seven at a spread of 4%


class EpochsState(StrEnum):
    """What is known of the epochs to the target of two groups."""

    ASSUMED_EQUAL = "assumed equal"
    SHOWN_EQUAL = "shown equal"
    NOT_SHOWN_EQUAL = "not shown equal"


class Basis(StrEnum):
    """The time that decides a comparison."""

    TIME_TO_TRAIN = "time-to-train"
    EXPECTED_TIME = "expected time to a success"


class Machines(StrEnum):
    """The machines that a comparison is about."""

    SAMPLED = ""
    """Several a side, which are its independent observations."""
    ONE = "on one machine"
    TWO = "between these two machines"
    """One a side, or machines that are not known apart."""
    GIVEN = "between these machines"
    """One on one side, several on the other."""


@dataclass(frozen=True)
class Comparison:
    """Two groups and the ratios of their times and epochs, baseline over other.

    `ratio` decides, None if the groups are not comparable: `time` is its interval at `level`, and `basis` says of which
    time it is the ratio. The other ratios have 95% intervals; `paired` is that of `time_to_train` over equal seeds and
    `correlation` that of the times of equal seeds, None without enough of them.
    """

    baseline: RunGroup
    other: RunGroup
    verdict: Verdict
    basis: Basis
    ratio: Ratio | None
    time: Interval
    level: float
    margin: float
    time_to_train: Interval
    epochs: Interval
    seconds_per_epoch: Interval
    train_seconds_per_epoch: Interval
    paired: Interval | None
    correlation: Interval | None
    epochs_state: EpochsState
    machines: Machines

    @property
    def is_unsafe(self) -> bool:
        """Whether time-to-train compares more than speed: epochs not shown equal, or failed runs."""
        return _has_failures(self.baseline, self.other) or self.epochs_state is not EpochsState.SHOWN_EQUAL

    @property
    def has_few_runs(self) -> bool:
        """Whether a side has fewer than three independent converged runs."""
        return _has_few_runs(self.baseline, self.other)

    def next_look(self) -> NextLook | None:
        """Return whether a study that is looked at after every run may stop; None if nothing can be said."""
        if not isinstance(self.ratio, LogEstimate):
            return None
        return planning.next_look(self.ratio, (self.baseline.time_sample, self.other.time_sample), self.margin)


@dataclass(frozen=True)
class _Pair:
    """What is known of a pair before its verdict; `ratio` is None if the times cannot be compared."""

    baseline: RunGroup
    other: RunGroup
    margin: float

    @cached_property
    def epochs(self) -> LogEstimate:
        return log_ratio(self.baseline.epoch_sample, self.other.epoch_sample)

    @cached_property
    def epochs_state(self) -> EpochsState:
        if math.isnan(self.epochs.error):
            return EpochsState.ASSUMED_EQUAL
        is_equal = is_equal_within(self.epochs, self.margin)
        return EpochsState.SHOWN_EQUAL if is_equal else EpochsState.NOT_SHOWN_EQUAL

    @cached_property
    def machines(self) -> Machines:
        sides = [group.converged_runs for group in (self.baseline, self.other)]
        counts = [len(samples.runs_by_machine(side)) for side in sides]
        if min(counts) > 1 and not self.has_failures:
            return Machines.SAMPLED
        if max(counts) > 1:
            return Machines.GIVEN
        runs = [run for side in sides for run in side]
        hosts = {run.host for run in runs}
        is_same_host = len(hosts) == 1 and "" not in hosts
        is_same_gpus = all(run.gpu_ids for run in runs) and len(samples.runs_by_machine(runs)) == 1
        return Machines.ONE if is_same_host or is_same_gpus else Machines.TWO

    @property
    def has_few_runs(self) -> bool:
        return _has_few_runs(self.baseline, self.other)

    @property
    def has_failures(self) -> bool:
        return _has_failures(self.baseline, self.other)

    @cached_property
    def basis(self) -> Basis:
        return Basis.EXPECTED_TIME if self.has_failures else Basis.TIME_TO_TRAIN

    @cached_property
    def is_comparable(self) -> bool:
        """Whether the times of the groups can be compared, whatever they are."""
        if workload_difference(self.baseline, self.other):
            return False
        if self.epochs_state is not EpochsState.NOT_SHOWN_EQUAL:
            return True
        return not list_recipe_differences(self.baseline, self.other)

    @cached_property
    def ratio(self) -> Ratio | None:
        if not self.is_comparable:
            return None
        if self.has_failures:
            return ExpectedTimeRatio(self.baseline.outcomes, self.other.outcomes)
        return ratio_of(self._mean_time(self.baseline), self._mean_time(self.other))

    @property
    def p_value(self) -> float:
        """p of the test that the times are equal; NaN for a pair that gets no verdict."""
        return math.nan if self.ratio is None or self.has_few_runs else self.ratio.p_value

    def _mean_time(self, group: RunGroup) -> LogEstimate:
        """Return the mean time-to-train of a group, whose observations are its machines if both sides have several."""
        if self.machines is not Machines.SAMPLED:
            return log_mean(group.time_sample)
        machines = samples.runs_by_machine(group.converged_runs)
        # A machine's mean is less noisy than a run, so the floor of a run does not apply to it.
        by_machine = samples.sample(machines, lambda run: run.duration)
        return crossed_mean(by_machine, group.time_sample) if samples.shares_seeds(machines) else log_mean(by_machine)


def _has_failures(baseline: RunGroup, other: RunGroup) -> bool:
    return bool(baseline.num_failed or other.num_failed)


def _has_few_runs(baseline: RunGroup, other: RunGroup) -> bool:
    return min(len(group.time_sample.values) for group in (baseline, other)) < _MIN_RUNS


def compare(baseline: RunGroup, other: RunGroup, margin: float = MARGIN) -> Comparison:
    """Return the comparison of a group with a baseline."""
    return compare_all([(baseline, other)], margin)[0]


def compare_all(pairs: Sequence[tuple[RunGroup, RunGroup]], margin: float = MARGIN) -> list[Comparison]:
    """Return the comparisons of (baseline, other) pairs, at most 5% of which give a false verdict in all together.

    Holm's (1979) step-down test decides at which level each pair is tested; its interval has that level. Groups are
    equal if their 90% interval lies within the margin.
    """
    assessed = [_Pair(baseline, other, margin) for baseline, other in pairs]
    levels = holm_levels([pair.p_value for pair in assessed])
    return [_conclude(pair, level) for pair, level in zip(assessed, levels, strict=True)]


def _conclude(pair: _Pair, level: float) -> Comparison:
    baseline, other = pair.baseline, pair.other
    time = pair.ratio.interval(level) if pair.ratio else UNKNOWN
    train = [group.sample(lambda run: run.train_pace) for group in (baseline, other)]
    paired, correlation = _pair_seeds(baseline, other)
    return Comparison(
        baseline=baseline,
        other=other,
        verdict=_verdict(pair, time),
        basis=pair.basis,
        ratio=pair.ratio,
        time=time,
        level=level,
        margin=pair.margin,
        time_to_train=log_ratio(baseline.time_sample, other.time_sample).interval(),
        epochs=pair.epochs.interval(),
        seconds_per_epoch=log_ratio(baseline.pace_sample, other.pace_sample).interval(),
        train_seconds_per_epoch=log_ratio(train[0], train[1]).interval(),
        paired=paired,
        correlation=correlation,
        epochs_state=pair.epochs_state,
        machines=pair.machines,
    )


def _verdict(pair: _Pair, time: Interval) -> Verdict:
    if not pair.is_comparable:
        return Verdict.NOT_COMPARABLE
    if pair.ratio is None or pair.has_few_runs:
        return Verdict.CANNOT_TELL
    return decide(pair.ratio, time, pair.margin)


def _pair_seeds(baseline: RunGroup, other: RunGroup) -> tuple[Interval | None, Interval | None]:
    """Return the ratio of time-to-train over equal seeds, and the correlation of their log times (Fisher 1921)."""
    times = [
        {run.seed: run.duration for run in group.converged_runs if run.seed is not None} for group in (baseline, other)
    ]
    seeds = [seed for seed in times[0] if seed in times[1]]
    if len(seeds) < _MIN_PAIRS:
        return None, None
    first, second = (np.log([of_side[seed] or math.nan for seed in seeds]) for of_side in times)
    paired = log_mean(Sample(tuple(np.exp(first - second)))).interval()
    if not first.std() or not second.std():
        return paired, None
    r = float(np.corrcoef(first, second)[0, 1])
    half_width = 1.959964 / math.sqrt(len(seeds) - 3)
    bounds = [math.tanh(math.atanh(min(max(r, -0.999999), 0.999999)) + sign * half_width) for sign in (-1, 1)]
    return paired, Interval(r, bounds[0], bounds[1], len(seeds))
