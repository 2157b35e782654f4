"""Compare run groups with a baseline: which is faster to the target, and whether it is luck.

Time-to-train is epochs times time per epoch, run by run. The epochs reflect the recipe and the luck of the seed, the
time per epoch the speed of hardware and software. The measured time-to-train decides, even where a test has shown
the epochs to be equal within the margin: the time per epoch alone would leave out that they differ within it. Every
ratio is baseline over other: above 1, the other is faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from . import planning, run_order, samples
from .distortion import Distortion, find_disturbance, find_overturning
from .failures import ExpectedTimeRatio
from .group_differences import list_recipe_differences, workload_difference
from .groups import RunGroup
from .intervals import UNKNOWN, Interval, LogEstimate, Ratio, is_equal_within, log_ratio
from .planning import NextLook
from .time_ratio import decides_by_pairs, pace_ratio, pair_times, paired_time_ratio, time_ratio, unpaired_time_ratio
from .verdicts import ALONE, MARGIN, MIN_RUNS, Levels, Verdict, decide, family_levels

_MIN_PAIRS = 4  # of equal seeds, for their correlation


class EpochsState(StrEnum):
    """What is known of the epochs to the target of two groups."""

    ASSUMED_EQUAL = "assumed equal"
    SHOWN_EQUAL = "shown equal"
    NOT_SHOWN_EQUAL = "not shown equal"


class Basis(StrEnum):
    """The time that decides a comparison."""

    TIME_TO_TRAIN = "time-to-train"
    PAIRED_TIME = "time-to-train of equal seeds"
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

    `levels` are those at which the verdict is reached among the pairs that are compared together.
    """

    baseline: RunGroup
    other: RunGroup
    margin: float = MARGIN
    levels: Levels = ALONE

    @cached_property
    def verdict(self) -> Verdict:
        """What is known of the other group; no more than holds in spite of each of `distortions`."""
        if self.ratio is None:
            return Verdict.NOT_COMPARABLE
        if self.distorting:
            return Verdict.CANNOT_TELL
        return decide(self.ratio, self.margin, self.levels)

    @cached_property
    def ratio(self) -> Ratio | None:
        """The ratio that decides, of the time that `basis` names; None if the groups are not comparable."""
        if not self.is_comparable:
            return None
        if self.basis is Basis.EXPECTED_TIME:
            return ExpectedTimeRatio(self.baseline.outcomes, self.other.outcomes)
        return time_ratio(self.baseline, self.other, by_machine=self._by_machine)

    @property
    def time(self) -> Interval:
        """The interval of `ratio` at the level of the verdict."""
        return self.ratio.interval(self.levels.difference) if self.ratio else UNKNOWN

    @cached_property
    def basis(self) -> Basis:
        """The time that decides."""
        if self._has_failures:
            return Basis.EXPECTED_TIME
        by_pairs = decides_by_pairs(self.baseline, self.other) and not self._by_machine
        return Basis.PAIRED_TIME if by_pairs else Basis.TIME_TO_TRAIN

    @cached_property
    def is_comparable(self) -> bool:
        """Whether the times of the groups can be compared, whatever they are."""
        if workload_difference(self.baseline, self.other):
            return False
        if self.epochs_state is not EpochsState.NOT_SHOWN_EQUAL:
            return True
        return not list_recipe_differences(self.baseline, self.other)

    @cached_property
    def distorting(self) -> Distortion | None:
        """The disturbance or drift that may have made the difference, or hidden it; None if the verdict withstands."""
        if self.ratio is None:
            return None
        sides = self.baseline.converged_runs, self.other.converged_runs
        distortions = find_disturbance(*sides), run_order.find_drift(*sides)
        return find_overturning(self.ratio, distortions, self.margin, self.levels)

    @cached_property
    def machines(self) -> Machines:
        """The machines that the verdict is about."""
        sides = self.baseline.converged_runs, self.other.converged_runs
        counts = [len(samples.runs_by_machine(side)) for side in sides]
        if min(counts) > 1 and not self._has_failures:
            return Machines.SAMPLED
        if max(counts) > 1:
            return Machines.GIVEN
        return Machines.ONE if samples.is_one_machine([*sides[0], *sides[1]]) else Machines.TWO

    @cached_property
    def epochs_state(self) -> EpochsState:
        """What is known of the epochs."""
        if math.isnan(self._epoch_ratio.error):
            return EpochsState.ASSUMED_EQUAL
        is_equal = is_equal_within(self._epoch_ratio, self.margin)
        return EpochsState.SHOWN_EQUAL if is_equal else EpochsState.NOT_SHOWN_EQUAL

    @property
    def is_unsafe(self) -> bool:
        """Whether time-to-train compares more than speed: epochs not shown equal, or failed runs."""
        return self.basis is Basis.EXPECTED_TIME or self.epochs_state is not EpochsState.SHOWN_EQUAL

    @property
    def has_few_runs(self) -> bool:
        """Whether a side has too few independent converged runs for a verdict."""
        return min(len(group.time_sample.values) for group in (self.baseline, self.other)) < MIN_RUNS

    @property
    def time_to_train(self) -> Interval:
        """The ratio of the time-to-train of the converged runs, whatever their seeds."""
        return unpaired_time_ratio(self.baseline, self.other, by_machine=self._by_machine).interval()

    @property
    def epochs(self) -> Interval:
        """The ratio of the epochs to the target."""
        return self._epoch_ratio.interval()

    @property
    def seconds_per_epoch(self) -> Interval:
        """The ratio of the time-to-train per epoch."""
        return self.pace.interval()

    @property
    def train_seconds_per_epoch(self) -> Interval:
        """The ratio of the time per epoch without evaluation."""
        ratio = pace_ratio(self.baseline, self.other, lambda run: run.train_pace, by_machine=self._by_machine)
        return ratio.interval()

    @property
    def paired(self) -> Interval | None:
        """The ratio of time-to-train over the seeds that both sides ran; None for fewer than four.

        None also where machines are the observations: over pairs, those of a machine are not independent.
        """
        if self._by_machine:
            return None
        ratio = paired_time_ratio(self.baseline, self.other)
        return ratio.interval() if ratio.n >= _MIN_PAIRS else None

    @property
    def correlation(self) -> Interval | None:
        """The correlation of the log times of equal seeds (Fisher 1921); None for fewer than four that vary."""
        first, second = (side.logs for side in pair_times(self.baseline, self.other))
        if len(first) < _MIN_PAIRS or not first.std() or not second.std():
            return None
        r = float(np.corrcoef(first, second)[0, 1])
        half_width = 1.959964 / math.sqrt(len(first) - 3)
        bounds = [math.tanh(math.atanh(min(max(r, -0.999999), 0.999999)) + sign * half_width) for sign in (-1, 1)]
        return Interval(r, bounds[0], bounds[1], len(first))

    def next_look(self, num_pairs: int) -> NextLook | None:
        """Return whether a study of so many pairs, looked at after every run, may stop; None if nothing can be said."""
        if not isinstance(self.ratio, LogEstimate):
            return None
        pilots = self.baseline.time_sample, self.other.time_sample
        return planning.next_look(self.ratio, pilots, self.margin, num_pairs)

    @cached_property
    def pace(self) -> LogEstimate:
        """The ratio of the time-to-train per epoch, to be combined with others."""
        return pace_ratio(self.baseline, self.other, lambda run: run.pace, by_machine=self._by_machine)

    @property
    def _by_machine(self) -> bool:
        """Whether the machines are the independent observations."""
        return self.machines is Machines.SAMPLED

    @property
    def _has_failures(self) -> bool:
        return bool(self.baseline.num_failed or self.other.num_failed)

    @cached_property
    def _epoch_ratio(self) -> LogEstimate:
        return log_ratio(self.baseline.epoch_sample, self.other.epoch_sample)


def compare(baseline: RunGroup, other: RunGroup, margin: float = MARGIN) -> Comparison:
    """Return the comparison of a group with a baseline."""
    return Comparison(baseline, other, margin)


def compare_all(pairs: Sequence[tuple[RunGroup, RunGroup]], margin: float = MARGIN) -> list[Comparison]:
    """Return the comparisons of (baseline, other) pairs, decided together.

    At most 5% of such calls call any of the equal pairs faster or slower, and at most 5% any that differ by more than
    `margin` equal.
    """
    comparisons = [Comparison(baseline, other, margin) for baseline, other in pairs]
    levels = family_levels([comparison.ratio for comparison in comparisons], margin)
    return [replace(comparison, levels=level) for comparison, level in zip(comparisons, levels, strict=True)]
