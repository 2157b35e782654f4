"""Judge groups in which runs failed: how often a run succeeds, and the time that a success takes with its failures.

The mean of the converged runs alone would favor whoever gives up early. A run that ended without its target counts with
all its seconds, and a run that diverged counts as one that would never have converged.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import betaincinv, stdtrit

from .intervals import LEVEL, Interval, arithmetic_mean, is_equal_within


@dataclass(frozen=True)
class Outcomes:
    """Seconds of the `converged` and of the `failed` runs of a group; `floor` is that of `Sample`."""

    converged: tuple[float, ...]
    failed: tuple[float, ...]
    floor: float = 0.0

    @property
    def n(self) -> int:
        """Number of runs."""
        return len(self.converged) + len(self.failed)

    def success_rate(self, level: float = LEVEL) -> Interval:
        """Return the share of runs that converge (Clopper and Pearson 1934)."""
        n, successes, tail = self.n, len(self.converged), (1 - level) / 2
        low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
        high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
        return Interval(successes / n, low, high, n) if n else Interval(math.nan, math.nan, math.nan, 0)

    def expected_time(self, level: float = LEVEL, failed_elsewhere: Sequence[float] = ()) -> Interval:
        """Return the expected seconds until a success, with the failed runs before it: all seconds over successes.

        That is the time of a converged run plus, for every success, (1 - p) / p failed ones. A group without a failure
        may have one yet: it then costs what it costs in `failed_elsewhere`, runs of another group, or else what the
        longest converged run took. The interval combines those of the time of a success, of p and of the time of a
        failure (MOVER: Zou and Donner 2008), which are independent. A run may fail at once or at the cap, so that the
        time of a failure has the spread of all failures, here and elsewhere. Infinite without a success.
        """
        if not self.converged:
            return Interval(math.inf, math.nan, math.nan, self.n)
        success_rate, success = self.success_rate(level), arithmetic_mean(self.converged, level, self.floor)
        failed = self.failed or tuple(failed_elsewhere) or (max(self.converged),)

        def failures(rate: float) -> float:
            return (1 - rate) / rate

        mean, odds = sum(failed) / len(failed), failures(success_rate.estimate)
        fewest, most = failures(success_rate.high), failures(success_rate.low)
        error = _error_of_mean(failed, (*self.failed, *failed_elsewhere), level)
        estimate = success.estimate + odds * mean
        down = math.hypot(success.estimate - success.low, mean * (odds - fewest), fewest * min(error, mean))
        up = math.hypot(success.high - success.estimate, mean * (most - odds), most * error)
        return Interval(estimate, estimate - down, estimate + up, len(self.converged))

    def restricted_mean(self, horizon: float, level: float = LEVEL) -> Interval:
        """Return the mean of the seconds to the target, where runs that take longer than `horizon` count with it.

        Between 0 and `horizon` every run is known, so nothing is assumed about failed ones (Royston and Parmar 2013).
        """
        within = Outcomes(
            tuple(value for value in self.converged if value <= horizon),
            tuple(horizon for value in self.converged if value > horizon) + (horizon,) * len(self.failed),
        )
        if not within.converged:
            return Interval(horizon, math.nan, math.nan, self.n)
        rate, success = within.success_rate(level), arithmetic_mean(within.converged, level, self.floor)
        share, gain = rate.estimate, horizon - success.estimate
        estimate = horizon - share * gain
        low = estimate - math.hypot(share * (success.estimate - success.low), gain * (rate.high - share))
        high = estimate + math.hypot(share * (success.high - success.estimate), gain * (share - rate.low))
        return Interval(estimate, low, high, len(within.converged))


def _error_of_mean(values: Sequence[float], population: Sequence[float], level: float) -> float:
    """Return the half-width of the interval of a mean (Student's t), 0 where nothing is known of the spread."""
    if len(population) < 2:
        return 0.0
    quantile = float(stdtrit(len(population) - 1, (1 + level) / 2))
    return quantile * statistics.stdev(population) / math.sqrt(len(values))


@dataclass(frozen=True)
class ExpectedTimeRatio:
    """The ratio of the expected times to a success of two independent groups."""

    numerator: Outcomes
    denominator: Outcomes

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the ratio with its interval (MOVER, on the log scale); no bounds if a group has no success."""
        above = self.numerator.expected_time(level, self.denominator.failed)
        below = self.denominator.expected_time(level, self.numerator.failed)
        n = min(above.n, below.n)
        estimate = above.estimate / below.estimate if math.isfinite(below.estimate) else math.nan
        if not (above.is_bounded and below.is_bounded and above.low > 0 and below.low > 0):
            return Interval(estimate, math.nan, math.nan, n)
        down = math.hypot(math.log(above.estimate / above.low), math.log(below.high / below.estimate))
        up = math.hypot(math.log(above.high / above.estimate), math.log(below.estimate / below.low))
        return Interval(estimate, estimate * math.exp(-down), estimate * math.exp(up), n)

    @property
    def n(self) -> int:
        """Independent converged runs on the side that has fewer."""
        return min(len(self.numerator.converged), len(self.denominator.converged))

    @property
    def p_value(self) -> float:
        """p of the two-sided test that the ratio is 1: one minus the level of the widest interval without 1."""
        return self._smallest_alpha(lambda alpha: not self._contains_one(self.interval(1 - alpha)))

    def equivalence_p_value(self, margin: float) -> float:
        """Return p of the test that the ratio lies outside 1 / (1 + margin) to 1 + margin."""
        return self._smallest_alpha(lambda alpha: is_equal_within(self, margin, alpha), most=0.5)

    @staticmethod
    def _contains_one(interval: Interval) -> bool:
        return interval.low <= 1 <= interval.high

    def _smallest_alpha(self, is_shown: Callable[[float], bool], most: float = 1.0) -> float:
        """Return the smallest significance level at which something is shown; NaN if there are no bounds."""
        if not self.interval().is_bounded:
            return math.nan
        low, high = 1e-9, most
        for _ in range(40):
            alpha = math.sqrt(low * high)
            low, high = (low, alpha) if is_shown(alpha) else (alpha, high)
        return high
