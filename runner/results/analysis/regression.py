"""Regressions of speed on an accelerator's peak: a line through the origin, and a power law."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """Fit of y proportional to x ** exponent by least squares on logs, where errors of measurement are factors.

    `log_x` and `log_y` are the logs of the points.
    """

    exponent: Interval
    log_x: Array
    log_y: Array

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.log_x)

    @property
    def residuals(self) -> Array:
        """Logs of measured over fitted y."""
        return self.log_y - self.log_y.mean() - self.exponent.estimate * (self.log_x - self.log_x.mean())

    def predict(self, x: float, level: float = LEVEL) -> Interval:
        """Return the prediction interval of a new observation at a positive `x`.

        Student's t with n - 2 degrees of freedom on the log scale (Draper and Smith 1998, section 3.1); no bounds for
        two points.
        """
        distance = math.log(x) - float(self.log_x.mean())
        log = float(self.log_y.mean()) + self.exponent.estimate * distance
        half_width = math.nan
        if self.n > 2:
            error = math.sqrt(_variance(self.residuals) * (1 + 1 / self.n + distance**2 / _squares(self.log_x)))
            half_width = float(stdtrit(self.n - 2, (1 + level) / 2)) * error
        with np.errstate(over="ignore"):  # infinite far away from points that lie close together
            estimate, low, high = (float(np.exp(value)) for value in (log, log - half_width, log + half_width))
        return Interval(estimate, low, high, self.n)


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
    log_x, log_y, n = np.log(xs), np.log(ys), len(xs)
    exponent = float((log_x - log_x.mean()) @ log_y) / _squares(log_x)
    fit = PowerFit(Interval(exponent, math.nan, math.nan, n), log_x, log_y)
    if n < 3:
        return fit
    half_width = float(stdtrit(n - 2, (1 + level) / 2)) * math.sqrt(_variance(fit.residuals) / _squares(log_x))
    return replace(fit, exponent=Interval(exponent, exponent - half_width, exponent + half_width, n))


def _squares(values: Array) -> float:
    """Return the sum of squares about the mean."""
    centered = values - values.mean()
    return float(centered @ centered)


def _variance(residuals: Array) -> float:
    """Return the residual variance of a line with slope and intercept."""
    return float(residuals @ residuals) / (len(residuals) - 2)
