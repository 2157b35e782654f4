"""Low outliers: the critical value by simulation, several slow values, and the rate of false alarms."""

import numpy as np
import pytest

from timetrial.runner.benchmarks.accept.outliers import critical_distance, find_low_outliers


@pytest.mark.parametrize("n", [3, 8, 40])
def test_the_lowest_normal_value_exceeds_the_critical_distance_as_often_as_stated(n):
    samples = np.random.default_rng(1).standard_normal((20_000, n))
    distances = (samples.mean(axis=1) - samples.min(axis=1)) / samples.std(axis=1, ddof=1)
    share = np.mean(distances > critical_distance(n, 0.05))
    assert 0.042 < share < 0.055  # four standard errors around 0.05, less what the union bound gives away


def test_the_critical_distances_of_grubbs_are_met():
    # Table 1 of Grubbs (1969), one-sided at 5%.
    table = {3: 1.153, 5: 1.672, 10: 2.176, 20: 2.557, 30: 2.745}
    for n, value in table.items():
        assert critical_distance(n, 0.05) == pytest.approx(value, abs=1e-3)


def test_slow_values_do_not_hide_each_other():
    values = 100 * np.exp(0.01 * np.random.default_rng(2).standard_normal(40))
    values[[4, 17, 29]] = 84, 86, 85
    assert find_low_outliers(values) == [4, 29, 17]


def test_fast_values_are_no_outliers_and_hide_none():
    values = 100 * np.exp(0.01 * np.random.default_rng(3).standard_normal(60))
    values[7] = 110
    assert find_low_outliers(values) == []
    values[9] = 80
    assert find_low_outliers(values) == [9]


@pytest.mark.parametrize("values", [[1.0], [1.0, 0.5], [1.0] * 10, [3.0, 3.0, 3.0]])
def test_few_or_equal_values_have_none(values):
    assert find_low_outliers(values) == []


@pytest.mark.parametrize("n", [3, 8, 10, 16, 30, 100])
def test_at_most_five_in_a_hundred_samples_have_a_false_alarm(n):
    samples = np.exp(0.01 * np.random.default_rng(4).standard_normal((2000, n)))
    alarms = sum(bool(find_low_outliers(sample)) for sample in samples)
    assert alarms <= 0.05 * 2000 + 2 * np.sqrt(0.05 * 0.95 * 2000)


def test_a_family_of_samples_shares_the_level():
    samples = np.exp(0.01 * np.random.default_rng(5).standard_normal((500, 20, 12)))
    alarms = sum(any(find_low_outliers(sample, 20) for sample in family) for family in samples)
    assert alarms <= 0.05 * 500 + 2 * np.sqrt(0.05 * 0.95 * 500)
