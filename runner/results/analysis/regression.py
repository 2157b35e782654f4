"""Regressions of speed on an accelerator's peak: a line through the origin, and a power law."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from .intervals import LEVEL, Array, Interval


@dataclass(frozen=True)
class LinearFit:
    """Fit of y = slope * x with R² about zero (uncentered) and about the mean (centered); NaN for constant y."""

    slope: float
    r2_uncentered: float
    r2_centered: float
    residuals: Array
    n: int


@dataclass(frozen=True)
class PowerFit:
    """Fit of y = factor * x ** exponent by least squares on logs, where errors of measurement are factors.

    `residuals` are those of the logs of y, `log_x` the logs of x.
    """

    factor: float
    exponent: Interval
    residuals: Array
    log_x: Array

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.log_x)

    def predict(self, x: float, level: float = LEVEL) -> Interval:
        """Return the prediction interval of a new observation at a positive `x`.

        Student's t with n - 2 degrees of freedom on the log scale (Draper and Smith 1998, section 3.1); no bounds for
        two points.
        """
        estimate = self.factor * x**self.exponent.estimate
        if self.n < 3:
            return Interval(estimate, math.nan, math.nan, self.n)
        centered = self.log_x - self.log_x.mean()
        distance = math.log(x) - float(self.log_x.mean())
        variance = float(self.residuals @ self.residuals) / (self.n - 2)
        error = math.sqrt(variance * (1 + 1 / self.n + distance**2 / float(centered @ centered)))
        spread = math.exp(float(stdtrit(self.n - 2, (1 + level) / 2)) * error)
        return Interval(estimate, estimate / spread, estimate * spread, self.n)


def fit_through_origin(x: Sequence[float] | Array, y: Sequence[float] | Array) -> LinearFit:
    """Return the least-squares fit of y = slope * x, with R² after Kvålseth (1985); ValueError if every x is 0."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if not xs.any():
        raise ValueError("A line through the origin needs a point with x other than 0.")
    slope = float(xs @ ys / (xs @ xs))
    residuals = ys - slope * xs
    squared_error, centered = float(residuals @ residuals), ys - ys.mean()

    def r2(total: float) -> float:
        return 1 - squared_error / total if total else math.nan

    return LinearFit(slope, r2(float(ys @ ys)), r2(float(centered @ centered)), residuals, len(xs))


def fit_power_law(x: Sequence[float] | Array, y: Sequence[float] | Array, level: float = LEVEL) -> PowerFit:
    """Return the least-squares fit of log y on log x; ValueError if a value is not positive or all x are equal."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if (xs <= 0).any() or (ys <= 0).any() or np.ptp(xs) == 0:
        raise ValueError("A power law needs positive values and at least two different x.")
    log_x, log_y = np.log(xs), np.log(ys)
    centered, n = log_x - log_x.mean(), len(xs)
    exponent = float(centered @ log_y / (centered @ centered))
    residuals = log_y - log_y.mean() - exponent * centered
    half_width = math.nan
    if n > 2:
        error = math.sqrt(float(residuals @ residuals) / (n - 2) / float(centered @ centered))
        half_width = float(stdtrit(n - 2, (1 + level) / 2)) * error
    interval = Interval(exponent, exponent - half_width, exponent + half_width, n)
    return PowerFit(math.exp(float(log_y.mean() - exponent * log_x.mean())), interval, residuals, log_x)
