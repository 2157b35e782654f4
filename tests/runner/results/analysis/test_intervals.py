"""Intervals compared with scipy's tests on logs, and with simulated truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import intervals
from timetrial.runner.results.analysis.intervals import Interval, Sample


def test_mean_is_a_t_interval_on_logs():
    values = [2.0, 2.3, 2.1, 2.7]
    logs = np.log(values)
    ends = np.exp(scipy_stats.t.interval(0.95, 3, logs.mean(), scipy_stats.sem(logs)))
    mean = intervals.geometric_mean(values)
    assert (mean.estimate, mean.low, mean.high, mean.n) == pytest.approx((scipy_stats.gmean(values), *ends, 4))


@pytest.mark.parametrize(("above", "below"), [([2.0, 2.2, 2.5], [1.0, 1.3, 1.1]), ([3.0, 5.0], [4.0, 4.1])])
def test_ratio_is_welch_on_logs(above, below):
    welch = scipy_stats.ttest_ind(np.log(above), np.log(below), equal_var=False)
    ends = welch.confidence_interval(0.99)
    ratio = intervals.log_ratio(Sample(tuple(above)), Sample(tuple(below)))
    interval = ratio.interval(0.99)
    assert (interval.low, interval.high) == pytest.approx((math.exp(ends.low), math.exp(ends.high)))
    assert ratio.p_value == pytest.approx(welch.pvalue)
    inverse = intervals.geometric_ratio(below, above, 0.99)
    assert (inverse.inverse.low, inverse.inverse.high) == pytest.approx((interval.low, interval.high))


def test_degrees_of_freedom_are_at_most_those_of_two_small_samples():
    """Three close values among twenty scattered ones: Welch has 21 degrees of freedom, and 4 are given."""
    few, many = Sample((1.0, 1.001, 1.002)), Sample(tuple(np.geomspace(0.5, 2.0, 20)))
    ratio = intervals.log_ratio(few, many)
    assert ratio.error == pytest.approx(math.hypot(few.error, many.error))
    assert ratio.dof == pytest.approx(4)


def test_seeds_shared_by_machines_are_crossed_with_them():
    """Of 1,000 studies of four seeds on three machines, 93% or more cover the mean; the machines alone would in few."""
    generator, covered, by_machines_alone = np.random.default_rng(3), 0, 0
    for _ in range(1000):
        seeds, machines = 0.06 * generator.standard_normal(4), 0.01 * generator.standard_normal(3)
        times = np.exp(machines[:, None] + seeds + 0.003 * generator.standard_normal((3, 4)))
        by_machine = Sample(tuple(scipy_stats.gmean(times, axis=1)))
        by_seed = intervals.log_mean(Sample(tuple(scipy_stats.gmean(times, axis=0))))
        mean = intervals.add_variance(intervals.log_mean(by_machine), by_seed).interval()
        covered += mean.low <= 1 <= mean.high
        alone = intervals.log_mean(by_machine).interval()
        by_machines_alone += alone.low <= 1 <= alone.high
    assert covered >= 930
    assert by_machines_alone < 700


def test_equal_epochs_are_uncertain_by_their_grid():
    """Epochs 4 4 4 mean that the target was met between 3 and 4: spacing / sqrt(12) around the mean."""
    floor = intervals.grid_floor(1.0, 4.0)
    assert floor == pytest.approx(1 / math.sqrt(12) / 4)
    mean = intervals.geometric_mean([4.0] * 3, floor=floor)
    assert math.log(mean.high / 4) == pytest.approx(scipy_stats.t.ppf(0.975, 2) * floor / math.sqrt(3))
    wide = intervals.geometric_mean([2.0, 4.0, 8.0], floor=floor)
    assert wide == intervals.geometric_mean([2.0, 4.0, 8.0])  # the spread seen is larger


def test_single_values_have_no_interval():
    for interval in (
        intervals.geometric_mean([3.0]),
        intervals.arithmetic_mean([3.0]),
        intervals.geometric_ratio([3.0], [1.0, 1.1]),
    ):
        assert interval.estimate > 0
        assert not interval.is_bounded
    assert math.isnan(intervals.log_ratio(Sample((3.0,)), Sample((1.0, 2.0))).p_value)
    assert intervals.geometric_mean([]).n == 0
    assert math.isnan(intervals.geometric_ratio([], [1.0, 2.0]).estimate)


def test_arithmetic_mean_covers_skewed_values():
    """Of 2,000 samples of five lognormal values with s = 0.4, 93% to 97% cover the mean exp(0.08)."""
    generator = np.random.default_rng(2)
    drawn = [intervals.arithmetic_mean(generator.lognormal(0, 0.4, 5)) for _ in range(2000)]
    assert 0.93 <= np.mean([mean.low <= math.exp(0.08) <= mean.high for mean in drawn]) <= 0.97
    assert intervals.arithmetic_mean([1.0, 2.0, 6.0]).estimate == pytest.approx(3.0)


def test_equality_needs_a_narrow_interval():
    narrow, wide = (Sample((100.0, 100.0 + width, 100.0 - width)) for width in (0.5, 6.0))
    other = Sample((101.0, 100.5, 101.5))
    assert intervals.is_equal_within(intervals.log_ratio(narrow, other), 0.05)
    assert not intervals.is_equal_within(intervals.log_ratio(narrow, other), 0.005)
    assert not intervals.is_equal_within(intervals.log_ratio(wide, other), 0.05)
    assert not intervals.is_equal_within(intervals.log_ratio(Sample((1.0,)), Sample((1.0,))), 0.05)


def test_values_far_apart_do_not_overflow():
    interval = intervals.geometric_mean([1e-9, 1e9], level=1 - 1e-9)
    assert interval.high < math.inf
    assert Interval(2.0, 1.0, 4.0, 3).scaled(0.5) == Interval(1.0, 0.5, 2.0, 3)


def test_correlated_successive_values_are_as_uncertain_as_they_are():
    """Of 2,000 sequences with a correlation of 0.5, 95% cover the mean with the added error; far fewer without."""
    generator, covered, alone = np.random.default_rng(4), 0, 0
    for _ in range(2000):
        logs = generator.standard_normal(8)
        for index in range(1, 8):
            logs[index] = 0.5 * logs[index - 1] + math.sqrt(0.75) * logs[index]
        values = np.exp(0.04 * logs)
        mean = intervals.log_mean(Sample(tuple(values)))
        added = replace(mean, error=math.hypot(mean.error, intervals.serial_error(values)))
        covered += added.interval().low <= 1 <= added.interval().high
        alone += mean.interval().low <= 1 <= mean.interval().high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
    assert alone / 2000 < 0.85


def test_rounding_of_published_values_has_a_floor():
    assert intervals.rounding_floor([110.0, 100.0]) == pytest.approx(1 / math.sqrt(12) / 105)
    assert intervals.rounding_floor([1.25, 1.5]) == pytest.approx(0.01 / math.sqrt(12) / 1.375)
    assert intervals.rounding_floor([]) == 0


def test_equal_values_beside_others_are_as_uncertain_as_one_more_run():
    """Three times 10 beside 20: the spread that 10, 10, 10 and 20 have."""
    sample = intervals.beside(Sample((10.0,) * 3), Sample((20.0, 20.0, 40.0)))
    assert sample.floor == pytest.approx(np.log([10, 10, 10, 20]).std(ddof=1))
    assert intervals.beside(Sample((10.0, 11.0)), Sample((20.0, 20.0))).floor == 0
    assert intervals.beside(Sample((10.0, 10.0)), Sample((10.0, 10.0))).floor == 0
