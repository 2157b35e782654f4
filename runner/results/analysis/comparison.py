"""Compare run groups with a baseline: which is faster to the target, and whether it is luck.

Time-to-train is epochs times time per epoch, run by run. The epochs reflect the recipe and the luck of the seed, the
time per epoch the speed of hardware and software. Where a test has shown the epochs of both groups to be equal, they
are pooled and the time per epoch decides. Every ratio is baseline over other: above 1, the other is faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from . import group_differences, planning, samples
from .failures import ExpectedTimeRatio
from .groups import RunGroup
from .intervals import (
    LEVEL,
    UNKNOWN,
    Interval,
    LogEstimate,
    Ratio,
    Sample,
    bounds_as_json,
    is_equal_within,
    log_mean,
    log_ratio,
)
from .planning import NextLook

ALPHA = 1 - LEVEL
MARGIN = 0.05
"""Relative difference up to which groups are called equal, unless a user sets another."""
_MIN_PAIRS = 4  # of equal seeds, for their correlation


class Verdict(StrEnum):
    """What is known of the other group against the baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    CANNOT_TELL = "cannot tell"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Comparison:
    """Two groups and the ratios of their times and epochs, baseline over other.

    `ratio` decides, None if the groups are not comparable: `time` is its interval at `level`, and `basis` says of which
    time it is the ratio.
    `reasons` says what the reader must know to trust the verdict. The other ratios have 95% intervals; `paired` is that
    of `time_to_train` over equal seeds and `correlation` that of the times of equal seeds, None without enough of them.
    """

    baseline: RunGroup
    other: RunGroup
    verdict: Verdict
    basis: str
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
    epochs_state: str
    machines: str
    reasons: list[str]
    differences: list[str]

    @property
    def title(self) -> str:
        """The names of the groups."""
        return f"{self.other.title} against {self.baseline.title}"

    @property
    def is_unsafe(self) -> bool:
        """Whether time-to-train compares more than speed: epochs not shown equal, or failed runs."""
        return bool(self.baseline.num_failed or self.other.num_failed) or not self.epochs_state.startswith("shown")

    @property
    def phrase(self) -> str:
        """The verdict in words, with its interval."""
        where = f", {self.machines}" if self.machines else ""
        if self.verdict == Verdict.NOT_COMPARABLE:
            unit = self.baseline.progress_unit.removesuffix("s")
            pace = f"; seconds per {unit}: {_format_ratio(self.seconds_per_epoch)}" if self.seconds_per_epoch.n else ""
            return f"not comparable by time-to-train{pace}"
        if not self.time.is_bounded:
            return f"cannot tell which is faster{where}"
        by = f"by {self.basis}{where}"
        if self.verdict == Verdict.EQUAL:
            return f"equal within {self.margin:.0%} {by} ({_format_ratio(self.time, self.level)})"
        if self.verdict == Verdict.CANNOT_TELL:
            return f"cannot tell which is faster {by} ({_format_ratio(self.time, self.level)})"
        times = self.time if self.verdict == Verdict.FASTER else self.time.inverse
        return f"{times.estimate:.4g} times {self.verdict} ({_format_bounds(times, self.level)}) {by}"

    @property
    def summary(self) -> str:
        """Names and verdict."""
        return f"{self.title}: {self.phrase}."

    def next_look(self) -> NextLook | None:
        """Return whether a study that is looked at after every run may stop; None if nothing can be said."""
        if not isinstance(self.ratio, LogEstimate):
            return None
        return planning.next_look(self.ratio, (self.baseline.time_sample, self.other.time_sample), self.margin)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as the object that `timetrial compare --json` prints."""
        sides = {"baseline": self.baseline, "other": self.other}
        return {
            **{name: group.title for name, group in sides.items()},
            "verdict": self.verdict.value,
            **bounds_as_json(self.time, "ratio"),
            "level": self.level,
            "basis": self.basis,
            "epochs": bounds_as_json(self.epochs, "ratio"),
            "seconds_per_epoch": bounds_as_json(self.seconds_per_epoch, "ratio"),
            "epochs_state": self.epochs_state,
            "paired": bounds_as_json(self.paired or UNKNOWN, "ratio"),
            "correlation": bounds_as_json(self.correlation or UNKNOWN, "value"),
            "runs": {name: len(group.runs) for name, group in sides.items()},
            "failures": {name: group.num_failed for name, group in sides.items()},
            "machines": self.machines,
            "reasons": self.reasons,
            "differences": self.differences,
        }


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
    def is_equal_epochs(self) -> bool:
        return is_equal_within(self.epochs, self.margin)

    @property
    def epochs_state(self) -> str:
        if math.isnan(self.epochs.error):
            return "assumed equal"
        return f"shown equal within {self.margin:.0%}" if self.is_equal_epochs else "not shown equal"

    @cached_property
    def recipe_differences(self) -> list[str]:
        return group_differences.list_recipe_differences(self.baseline, self.other)

    @cached_property
    def is_clustered(self) -> bool:
        """Whether each side ran on several machines, so that its machines are its independent observations."""
        return all(len(samples.runs_by_host(group.converged_runs)) > 1 for group in (self.baseline, self.other))

    @cached_property
    def machines(self) -> str:
        if self.is_clustered:
            return ""
        hosts = [{run.host for run in group.converged_runs} - {""} for group in (self.baseline, self.other)]
        same = hosts[0] == hosts[1] and len(hosts[0]) == 1
        return "on one machine" if same else "between these two machines"

    @property
    def has_failures(self) -> bool:
        return bool(self.baseline.num_failed or self.other.num_failed)

    @cached_property
    def basis(self) -> str:
        if self.has_failures:
            return "expected time to a success"
        return "time-to-train with pooled epochs" if self.is_equal_epochs else "time-to-train"

    @cached_property
    def ratio(self) -> Ratio | None:
        if self.obstacles:
            return None
        if self.has_failures:
            return ExpectedTimeRatio(self.baseline.outcomes, self.other.outcomes)
        attribute = "pace_sample" if self.is_equal_epochs else "time_sample"
        return log_ratio(*(self._sample(group, attribute) for group in (self.baseline, self.other)))

    def _sample(self, group: RunGroup, attribute: str) -> Sample:
        by_seed: Sample = getattr(group, attribute)
        if not self.is_clustered:
            return by_seed
        of_run = {"pace_sample": lambda run: run.pace, "time_sample": lambda run: run.duration}[attribute]
        # A machine's mean is less noisy than a run, so the floor of a run does not apply to it.
        return samples.sample(samples.runs_by_host(group.converged_runs), of_run)

    @cached_property
    def obstacles(self) -> list[str]:
        """Why the times of the groups cannot be compared, whatever they are."""
        if reason := group_differences.describe_workload_difference(self.baseline, self.other):
            return [reason]
        if self.is_single or not self.recipe_differences or self.is_equal_epochs:
            return []
        return [
            f"their recipes differ ({', '.join(self.recipe_differences)}) and their epochs are not shown equal "
            f"({self._mean_epochs}), so time-to-train compares recipes: compare the time per epoch"
        ]

    @property
    def is_single(self) -> bool:
        """Whether a side has fewer than two independent converged runs."""
        return min(len(group.time_sample.values) for group in (self.baseline, self.other)) < 2

    @property
    def _mean_epochs(self) -> str:
        means = [f"{group.mean_epochs.estimate:.3g}" if group.epochs else "unknown" for group in self._sides]
        return f"{' vs. '.join(means)} {self.baseline.progress_unit}"

    @property
    def _sides(self) -> tuple[RunGroup, RunGroup]:
        return self.baseline, self.other

    def reasons(self) -> list[str]:
        """Return what the reader must know, the most important first."""
        reasons = list(self.obstacles)
        for group in self._sides:
            if not group.converged_runs:
                longest = max(run.observed for run in group.runs) / 60
                reasons.append(f"no run of {group.title} reached its target: it takes > {longest:.3g} min")
            elif group.num_failed:
                reasons.append(f"{group.num_failed} of {len(group.runs)} runs of {group.title} failed")
        if not self.obstacles and all(group.converged_runs for group in self._sides):
            reasons += self._describe_luck()
        for group in self._sides:
            reasons += samples.describe_dependence(group.title, group.converged_runs)
            flags = sorted({flag for run in group.runs for flag in run.flags})
            if flags:
                reasons.append(f"validity flags of {group.title}: {', '.join(flags)}")
        return reasons

    def _describe_luck(self) -> list[str]:
        if self.is_single:
            recipes = (
                f"; their recipes differ ({', '.join(self.recipe_differences)})" if self.recipe_differences else ""
            )
            return [f"one converged run of a side cannot tell luck from speed: repeat both with other seeds{recipes}"]
        if self.is_equal_epochs:
            return []
        return [f"their epochs are not shown equal within {self.margin:.0%} ({self._mean_epochs}): they are not pooled"]


def compare(baseline: RunGroup, other: RunGroup, margin: float = MARGIN) -> Comparison:
    """Return the comparison of a group with a baseline."""
    return compare_all([(baseline, other)], margin)[0]


def compare_all(pairs: Sequence[tuple[RunGroup, RunGroup]], margin: float = MARGIN) -> list[Comparison]:
    """Return the comparisons of (baseline, other) pairs, at most 5% of which give a false verdict in all together.

    Holm's (1979) step-down test decides at which level each pair is tested; its interval has that level. Groups are
    equal if their 90% interval lies within the margin.
    """
    assessed = [_Pair(baseline, other, margin) for baseline, other in pairs]
    levels = holm_levels([pair.ratio.p_value if pair.ratio else math.nan for pair in assessed])
    return [_conclude(pair, level) for pair, level in zip(assessed, levels, strict=True)]


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the confidence level at which each hypothesis is decided; NaN stands for one that is not tested."""
    tested = sorted((p, index) for index, p in enumerate(p_values) if math.isfinite(p))
    levels = [LEVEL] * len(p_values)
    alpha = ALPHA
    for step, (p, index) in enumerate(tested):
        alpha = ALPHA / (len(tested) - step)
        if p > alpha:
            for _, rest in tested[step:]:
                levels[rest] = 1 - alpha
            break
        levels[index] = 1 - alpha
    return levels


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
        reasons=pair.reasons(),
        differences=group_differences.list_differences(baseline, other),
    )


def _verdict(pair: _Pair, time: Interval) -> Verdict:
    if pair.obstacles:
        return Verdict.NOT_COMPARABLE
    return decide(pair.ratio, time, pair.margin) if pair.ratio else Verdict.CANNOT_TELL


def decide(ratio: Ratio, interval: Interval, margin: float = MARGIN) -> Verdict:
    """Return the verdict of a ratio, baseline over other, whose interval at the level of the test is `interval`."""
    if not interval.is_bounded:
        return Verdict.CANNOT_TELL
    if is_equal_within(ratio, margin):
        return Verdict.EQUAL
    if interval.low <= 1 <= interval.high:
        return Verdict.CANNOT_TELL
    return Verdict.FASTER if interval.low > 1 else Verdict.SLOWER


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


def _format_bounds(interval: Interval, level: float = LEVEL) -> str:
    return f"{level * 100:.3g}% CI: {interval.low:.4g} to {interval.high:.4g}"


def _format_ratio(interval: Interval, level: float = LEVEL) -> str:
    bounds = f", {_format_bounds(interval, level)}" if interval.is_bounded else ", no interval"
    return f"ratio {interval.estimate:.4g}{bounds}"
