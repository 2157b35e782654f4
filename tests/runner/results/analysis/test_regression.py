"""Regressions compared with scipy, hand calculations and a published study."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import regression

# Six GPUs of a published comparison: peak FP32 TFLOP/s; milliseconds per batch in evaluation and in training.
PEAKS = [14.90, 11.34, 14.13, 13.45, 8.14, 12.74]


def test_slope_and_uncentered_r2():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.1, 3.9, 6.2, 7.8])
    line = regression.fit_through_origin(x, y)
    assert line.slope == pytest.approx((x * y).sum() / (x * x).sum())
    assert line.r2_uncentered == pytest.approx(1 - ((y - line.slope * x) ** 2).sum() / (y**2).sum())


@pytest.mark.parametrize(
    ("milliseconds", "uncentered", "centered"),
    [([31.3, 39.3, 26.2, 30.5, 72.4, 45.6], 0.976, 0.70), ([108.8, 131.9, 83.5, 102.9, 223.6, 146.9], 0.975, 0.66)],
)
def test_uncentered_r2_exceeds_centered(milliseconds, uncentered, centered):
    line = regression.fit_through_origin(PEAKS, 1 / np.array(milliseconds))
    assert (round(line.r2_uncentered, 3), round(line.r2_centered, 2), line.n) == (uncentered, centered, 6)


def test_r2_of_constant_values():
    flat = regression.fit_through_origin([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert math.isnan(flat.r2_centered)
    assert flat.r2_uncentered == pytest.approx(6 / 7)


def test_power_law_agrees_with_scipy():
    x, y = np.array(PEAKS), 1000 / np.array([31.3, 39.3, 26.2, 30.5, 72.4, 45.6])
    fit = regression.fit_power_law(x, y)
    line = scipy_stats.linregress(np.log(x), np.log(y))
    quantile = scipy_stats.t.ppf(0.975, 4)
    assert fit.exponent.estimate == pytest.approx(line.slope)
    assert fit.exponent.high == pytest.approx(line.slope + quantile * line.stderr)
    # The error of a prediction, from the errors of the slope and of the mean and the residual variance.
    residual = np.log(y) - line.intercept - line.slope * np.log(x)
    variance, distance = (residual**2).sum() / 4, math.log(20) - np.log(x).mean()
    error = math.sqrt(variance + variance / 6 + (line.stderr * distance) ** 2)
    predicted = fit.predict(20.0)
    assert predicted.estimate == pytest.approx(math.exp(line.intercept + line.slope * math.log(20)))
    assert math.log(predicted.high / predicted.estimate) == pytest.approx(quantile * error)
    assert math.log(predicted.estimate / predicted.low) == pytest.approx(quantile * error)


def test_power_law_is_exact_without_noise_and_does_not_depend_on_units():
    fit = regression.fit_power_law([1.0, 2.0, 4.0], [3.0, 12.0, 48.0])
    assert (fit.exponent.estimate, fit.exponent.low, fit.exponent.high) == pytest.approx((2, 2, 2))
    assert fit.predict(8.0).high == pytest.approx(192)
    noisy, y = [1.0, 2.0, 4.1, 7.7], [3.0, 5.0, 9.0, 13.0]
    first = regression.fit_power_law(noisy, y).predict(10.0)
    second = regression.fit_power_law([1000 * value for value in noisy], [60 * value for value in y]).predict(10_000.0)
    assert (second.low, second.high) == pytest.approx((60 * first.low, 60 * first.high))


def test_two_points_have_no_bounds_and_close_points_bound_nothing():
    pair = regression.fit_power_law([1.0, 2.0], [1.0, 2.0]).predict(4.0)
    assert (pair.estimate, math.isnan(pair.low)) == (pytest.approx(4.0), True)
    assert regression.fit_power_law([10.0, 10.01, 10.02], [1.0, 2.0, 1.0]).predict(1000.0).high == math.inf


@pytest.mark.parametrize(("x", "y"), [([1.0, 1.0], [1.0, 2.0]), ([0.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 1.0])])
def test_power_law_needs_positive_values_and_two_different_x(x, y):
    with pytest.raises(ValueError, match="power law"):
        regression.fit_power_law(x, y)


def test_line_through_origin_needs_a_point():
    with pytest.raises(ValueError, match="origin"):
        regression.fit_through_origin([0.0, 0.0], [1.0, 2.0])
