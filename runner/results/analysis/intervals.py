"""Confidence intervals of positive values and of their ratios, which hold from two values on.

Times and epochs vary by factors, so intervals are Student's t on the log scale: of one sample for a mean, Welch's for a
ratio. `docs/calibration.md` has their simulated coverage. Quality is evaluated on a grid, every epoch say, so equal
epochs do not mean that nothing varies: the variance has a floor of the grid's rounding error, spacing² / 12.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Array = NDArray[np.float64]
_MAX_LOG = 300.0  # of a half-width, which two values far apart can make larger than floats can hold
LEVEL = 0.95
"""Confidence level of intervals."""
CLOCK_SECONDS = 0.001
"""Resolution of the times in MLPerf logs."""
SERIAL_CORRELATION = 0.5
"""Assumed correlation of the paces of successive runs on one machine, which a few runs are too few to estimate."""


@dataclass(frozen=True)
class Interval:
    """An estimate from `n` independent values with its confidence interval.

    `low` and `high` are NaN where n is too small for an interval.
    """

    estimate: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        """Return the estimate and its bounds with three digits."""
        bounds = f" ({self.low:.3g} to {self.high:.3g})" if self.is_bounded else ""
        return f"{self.estimate:.3g}{bounds}"

    @property
    def is_bounded(self) -> bool:
        """Whether there is an interval and not only an estimate."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def inverse(self) -> "Interval":
        """The interval of one over the value."""
        low, high = (1 / value if value else math.inf for value in (self.high, self.low))
        return Interval(1 / self.estimate, low, high, self.n)

    def scaled(self, factor: float) -> "Interval":
        """Return the interval in a unit that is `factor` times smaller."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor, self.n)


UNKNOWN = Interval(math.nan, math.nan, math.nan, 0)
"""The interval without a value."""


class Ratio(Protocol):
    """A ratio that can be tested: a `LogEstimate`, or one that counts failed runs."""

    @property
    def n(self) -> int:
        """Independent runs on the side that has fewer."""

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval at a confidence level."""

    @property
    def p_value(self) -> float:
        """p of the two-sided test that the ratio is 1."""

    def equivalence_p_value(self, margin: float) -> float:
        """Return p of the test that the ratio lies outside 1 / (1 + margin) to 1 + margin (Schuirmann 1987)."""


@dataclass(frozen=True)
class LogEstimate:
    """An estimate on the log scale, with its standard error and degrees of freedom (NaN for single values)."""

    log: float
    error: float
    dof: float
    n: int

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval of the value itself at a confidence level."""
        estimate = math.exp(self.log)
        if not math.isfinite(self.error):
            return Interval(estimate, math.nan, math.nan, self.n)
        half_width = float(stdtrit(self.dof, (1 + level) / 2)) * self.error if self.error else 0.0
        half_width = min(half_width, _MAX_LOG)
        return Interval(estimate, math.exp(self.log - half_width), math.exp(self.log + half_width), self.n)

    @property
    def p_value(self) -> float:
        """p of the two-sided test that the value is 1; NaN without a standard error."""
        if not self.error:
            return float(self.log == 0)
        return 2 * float(stdtr(self.dof, -abs(self.log) / self.error))

    def equivalence_p_value(self, margin: float) -> float:
        """Return p of the test that the value lies outside 1 / (1 + margin) to 1 + margin; NaN without an error."""
        distance = math.log1p(margin) - abs(self.log)
        if not self.error:
            return float(distance < 0)
        return float(stdtr(self.dof, -distance / self.error))


@dataclass(frozen=True)
class Sample:
    """Independent positive values of a run group; `floor` bounds the standard deviation of their logs from below."""

    values: tuple[float, ...]
    floor: float = 0.0

    @cached_property
    def logs(self) -> Array:
        """The logs of the values."""
        return np.log(np.asarray(self.values, dtype=np.float64))

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the logs, at least `floor`; NaN for fewer than two values."""
        return max(float(self.logs.std(ddof=1)), self.floor) if len(self.values) > 1 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean of the logs."""
        return self.deviation / math.sqrt(len(self.values)) if self.values else math.nan


def grid_floor(spacing: float, mean: float) -> float:
    """Return the standard deviation on the log scale that rounding to a grid adds: spacing / sqrt(12), relative."""
    return spacing / math.sqrt(12) / mean if mean > 0 else 0.0


def rounding_floor(values: Sequence[float]) -> float:
    """Return the standard deviation on the log scale that rounding to the last digit of published values adds."""
    exponents = (Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values)
    digits = min((exponent for exponent in exponents if isinstance(exponent, int)), default=0)
    return grid_floor(10.0 ** min(digits, 0), sum(values) / len(values)) if values else 0.0


def log_ratio(numerator: Sample, denominator: Sample) -> LogEstimate:
    """Return the ratio of the geometric means of two independent samples (Welch 1947, on logs)."""
    first, second = beside(numerator, denominator), beside(denominator, numerator)
    return ratio_of(log_mean(first), log_mean(second))


def beside(sample: Sample, other: Sample) -> Sample:
    """Return a sample of equal values with the floor that it would have if one more were the nearest of the other.

    Values on a coarse grid, such as epochs of 10 or 20, are often equal by chance, which says little of their spread.
    """
    n, value = len(sample.values), sample.values[0] if sample.values else math.nan
    distances = [abs(math.log(each / value)) for each in other.values if each != value]
    if n < 2 or not distances or any(each != value for each in sample.values):
        return sample
    return Sample(sample.values, max(sample.floor, min(distances) / math.sqrt(n + 1)))


def ratio_of(numerator: LogEstimate, denominator: LogEstimate) -> LogEstimate:
    """Return the ratio of two independent estimates; its degrees of freedom are those of `sum_of_variances`."""
    n = min(numerator.n, denominator.n)
    error, dof = sum_of_variances(numerator, denominator) if n > 1 else (math.nan, math.nan)
    return LogEstimate(numerator.log - denominator.log, error, dof, n)


def sum_of_variances(first: LogEstimate, second: LogEstimate) -> tuple[float, float]:
    """Return the square root of the sum of two independent variances, and its degrees of freedom.

    By Satterthwaite (1946), but at most twice those of the estimate that has fewer: among two estimates of unequal
    size, the small one's variance is often too low by chance, which would give it the large one's degrees of freedom.
    """
    parts = [estimate.error**4 / estimate.dof for estimate in (first, second)]
    error = math.hypot(first.error, second.error)
    most = 2 * min(first.dof, second.dof)
    return error, min(error**4 / sum(parts), most) if sum(parts) else most


def log_mean(sample: Sample) -> LogEstimate:
    """Return the geometric mean of a sample."""
    n = len(sample.values)
    return LogEstimate(float(sample.logs.mean()) if n else math.nan, sample.error, n - 1, n)


def serial_error(values: Sequence[float]) -> float:
    """Return the standard error that the correlation of successive values adds to that of the mean of their logs.

    Neighbors correlate by `SERIAL_CORRELATION` in an autoregressive process of order one. The variance of a value is
    that of generalized least squares (Aitken 1936), that of the mean is the sum of all covariances over n². 0 for
    fewer than two values.
    """
    n, logs = len(values), np.log(np.asarray(values, dtype=np.float64))
    if n < 2:
        return 0.0
    covariance = SERIAL_CORRELATION ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    precision = np.linalg.inv(covariance)
    residuals = logs - (precision.sum(axis=0) @ logs) / precision.sum()
    correlated = float(residuals @ precision @ residuals) / (n - 1) * float(covariance.sum()) / n**2
    return math.sqrt(max(correlated - float(logs.var(ddof=1)) / n, 0.0))


def add_variance(estimate: LogEstimate, other: LogEstimate) -> LogEstimate:
    """Return an estimate that varies for the reason of another one too, whose value does not count."""
    error, dof = sum_of_variances(estimate, other)
    return LogEstimate(estimate.log, error, dof, estimate.n)


def geometric_mean(values: Sequence[float], level: float = LEVEL, floor: float = 0.0) -> Interval:
    """Return the geometric mean of positive values."""
    return log_mean(Sample(tuple(values), floor)).interval(level)


def geometric_ratio(
    numerator: Sequence[float],
    denominator: Sequence[float],
    level: float = LEVEL,
    floors: tuple[float, float] = (0.0, 0.0),
) -> Interval:
    """Return the ratio of the geometric means of two independent samples of positive values."""
    return log_ratio(Sample(tuple(numerator), floors[0]), Sample(tuple(denominator), floors[1])).interval(level)


def arithmetic_mean(values: Sequence[float], level: float = LEVEL, floor: float = 0.0) -> Interval:
    """Return the mean of positive values, for sums such as energy and cost.

    The standard error of its log is Cox's for lognormal values, s² / n + s⁴ / (2 (n - 1)), with Student's t in place of
    the normal quantile (Zhou and Gao 1997; Olsson 2005).
    """
    sample = Sample(tuple(values), floor)
    n, variance = len(values), sample.deviation**2
    mean = sum(values) / n if n else math.nan
    error = math.sqrt(variance / n + variance**2 / (2 * (n - 1))) if n > 1 else math.nan
    return LogEstimate(0.0, error, n - 1, n).interval(level).scaled(mean)


def is_equal_within(ratio: Ratio, margin: float, alpha: float = 0.05) -> bool:
    """Return True if two one-sided tests at `alpha` show that a ratio lies within 1 / (1 + margin) and 1 + margin.

    That is, its interval of level 1 - 2 alpha lies between them (Schuirmann 1987).
    """
    interval = ratio.interval(1 - 2 * alpha)
    return interval.is_bounded and 1 / (1 + margin) <= interval.low and interval.high <= 1 + margin


def bounds_as_json(interval: Interval, name: str) -> dict[str, float | None]:
    """Return estimate and bounds under the keys `name`, "low" and "high"; None is what is unknown."""
    values = {name: interval.estimate, "low": interval.low, "high": interval.high}
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
