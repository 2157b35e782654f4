"""Plan a study: how many runs a difference needs, and when a study that is looked at after every run may stop."""

import math
from dataclasses import dataclass

from scipy.special import chdtri, ncfdtr, stdtrit

from .intervals import Interval, LogEstimate, Sample, is_equal_within
from .verdicts import Verdict

POWER = 0.8
MIN_PILOT_RUNS = 3
"""Two runs say next to nothing about the spread: its 95% interval reaches over a factor of 70."""
MAX_LOOKS = 30
"""Runs of each group up to which a sequential study may look at its results after every run."""
SEQUENTIAL_ALPHA = 0.007
"""Significance level of each look, from three runs a group to `MAX_LOOKS`: 5% in all looks together.

A constant level (Pocock 1977); its value is simulated with Welch's test (docs/calibration.md).
"""
_SPREAD_LEVEL = 0.8  # one-sided confidence level of the spread that a plan is based on
_MAX_RUNS = 100_000


@dataclass(frozen=True)
class RunsNeeded:
    """Runs of each group that find a difference with the stated power.

    `low` takes the spread as seen, `high` its upper 80% confidence limit (Browne 1995): plan with `high`.
    """

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" if self.low < self.high else f"{self.high}"


def runs_needed(pilot: Sample, difference: float, alpha: float = 0.05) -> RunsNeeded | None:
    """Return the runs per group at which a relative `difference` (0.05 is 5%) is found with 80% power.

    None for a pilot of fewer than three runs.
    """
    n = len(pilot.values)
    if n < MIN_PILOT_RUNS:
        return None
    return RunsNeeded(
        _fewest_runs(pilot.deviation, difference, alpha), _fewest_runs(upper_deviation(pilot), difference, alpha)
    )


def upper_deviation(pilot: Sample) -> float:
    """Return the upper confidence limit of the standard deviation of the logs, by the chi-squared distribution."""
    dof = len(pilot.values) - 1
    return max(float(pilot.logs.std(ddof=1)) * math.sqrt(dof / float(chdtri(dof, _SPREAD_LEVEL))), pilot.floor)


def _fewest_runs(deviation: float, difference: float, alpha: float) -> int:
    low, high = MIN_PILOT_RUNS - 1, MIN_PILOT_RUNS
    while power_of(high, difference, deviation, alpha) < POWER:
        if high > _MAX_RUNS:
            return high
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = power_of(middle, difference, deviation, alpha) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def power_of(runs: int, difference: float, deviation: float, alpha: float = 0.05) -> float:
    """Return the power of a two-sided t test on logs with `runs` per group (noncentral t: Cohen 1988)."""
    if deviation == 0:
        return 1.0
    # A squared noncentral t is a noncentral F.
    dof, noncentrality = 2 * runs - 2, (math.log1p(difference) / deviation) ** 2 * runs / 2
    critical = float(stdtrit(dof, 1 - alpha / 2)) ** 2
    # Past this noncentrality the power is 1 to twelve digits, where the distribution function loses its precision.
    return 1.0 if noncentrality > 4 * critical + 400 else 1 - float(ncfdtr(1, dof, noncentrality, critical))


def detectable_difference(runs: int, deviation: float, alpha: float = 0.05) -> float:
    """Return the smallest relative difference that `runs` per group find with 80% power."""
    low, high = 0.0, 1.0
    while power_of(runs, high, deviation, alpha) < POWER and high < 1e6:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        enough = power_of(runs, middle, deviation, alpha) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


@dataclass(frozen=True)
class NextLook:
    """What a sequential study of two groups says after its present runs.

    `verdict` is on the denominator of the ratio, against its numerator; None: go on until about `total_runs` runs of
    each group. `interval` has the confidence level `level`.
    """

    verdict: Verdict | None
    interval: Interval
    level: float
    pilots: tuple[Sample, Sample]
    difference: float

    @property
    def total_runs(self) -> int:
        """Runs of each group that find `difference` in a look."""
        plans = [runs_needed(pilot, self.difference, 1 - self.level) for pilot in self.pilots]
        return max(plan.high for plan in plans if plan)


def next_look(
    ratio: LogEstimate, pilots: tuple[Sample, Sample], difference: float = 0.05, num_pairs: int = 1
) -> NextLook | None:
    """Return whether a study of two groups may stop now, at a level that allows a look after every run.

    `ratio` is that of `pilots`, first over second. The chance of a false stop is that of all `num_pairs` pairs of the
    study together (Bonferroni). None for fewer than three runs a group.
    """
    if ratio.n < MIN_PILOT_RUNS:
        return None
    alpha = SEQUENTIAL_ALPHA / num_pairs
    interval, verdict = ratio.interval(1 - alpha), None
    if ratio.n <= MAX_LOOKS and not interval.low <= 1 <= interval.high:
        verdict = Verdict.FASTER if ratio.log > 0 else Verdict.SLOWER
    elif is_equal_within(ratio, difference, alpha):
        verdict = Verdict.EQUAL
    return NextLook(verdict, interval, 1 - alpha, pilots, difference)
