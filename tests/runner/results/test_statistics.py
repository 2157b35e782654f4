"""Statistics against hand-worked numbers, published tables and brute force."""

import math
from itertools import permutations

import numpy as np
import pytest
from mlperf_logging.result_summarizer import result_summarizer
from scipy import stats

from timetrial.runner.results import statistics


@pytest.mark.parametrize(
    ("values", "failed", "score"),
    [([5, 1, 3, 4, 2], 0, 3), ([5, 1, 3, 4], 1, 4), ([5, 1, 3], 2, None), ([1, 2], 0, None), ([1, 2], 1, 2)],
)
def test_the_olympic_mean(values, failed, score):
    assert statistics.olympic_mean(values, failed) == score


def test_the_olympic_mean_is_the_official_one():
    generator = np.random.default_rng(1)
    for failed in (0, 1):
        values = list(generator.lognormal(size=9))
        official = result_summarizer._compute_olympic_average(list(values), failed, 1)
        assert statistics.olympic_mean(values, failed) == pytest.approx(official, rel=1e-12)


def test_the_first_that_converge_by_start():
    found = statistics.first_converged([1.0] * 5, [True, False, True, True, True], [9.0, 1.0, math.nan, 3.0, 5.0], 3)
    assert found == [3, 4, 0]


def test_intervals_cover_what_they_should():
    """Of 95% intervals for the mean of 12 skewed values, 88 to 99 of 100 hold it (BCa is a little short)."""
    generator = np.random.default_rng(2)
    held = 0
    for trial in range(100):
        found = statistics.interval(generator.lognormal(0, 0.4, 12), seed=trial)
        held += found.low <= math.exp(0.08) <= found.high
    assert 86 <= held <= 99


def test_few_values_have_wide_intervals_and_one_has_none():
    one, two = statistics.interval([3.0]), statistics.interval([3.0, 3.3])
    assert (one.estimate, one.n) == (3.0, 1)
    assert math.isnan(one.low)
    assert two.low < 2 < 5 < two.high  # t with one degree of freedom
    assert statistics.interval([4.0] * 5) == statistics.Interval(4.0, 4.0, 4.0, 5)
    assert statistics.interval([]).n == 0
    median = statistics.interval([1.0, 2.0, 3.0, 4.0, 50.0], np.median)
    assert median.estimate == 3
    assert median.low <= 3 <= median.high


@pytest.mark.parametrize("n", [3, 8])
def test_the_ratio_of_known_means(n):
    generator = np.random.default_rng(3)
    held = 0
    for trial in range(60):
        above, below = generator.lognormal(1, 0.1, n), generator.lognormal(0, 0.1, n)
        found = statistics.ratio(above, below, seed=trial)
        held += found.low <= math.e <= found.high
    assert 50 <= held <= 60
    assert math.isnan(statistics.ratio([2.0], [1.0, 1.1]).low)
    assert statistics.ratio([4.0, 4.0], [2.0, 2.0]) == statistics.Interval(2.0, 2.0, 2.0, 2)


def test_the_permutation_test_counts_all_arrangements():
    one, other = [1.0, 4.0, 9.0], [3.0, 8.0, 12.0, 20.0]
    both, seen = one + other, abs(np.mean(one) - np.mean(other))
    hits = [abs(np.mean(order[:3]) - np.mean(order[3:])) >= seen - 1e-12 for order in permutations(both)]
    assert statistics.permutation_p(one, other) == pytest.approx(np.mean(hits))
    assert statistics.permutation_p([4.0] * 5, [12.0] * 5) == pytest.approx(2 / math.comb(10, 5))
    assert statistics.permutation_p([4.0] * 5, [4.0] * 5) == 1
    assert math.isnan(statistics.permutation_p([1.0], [2.0]))
    assert statistics.permutation_p(np.arange(20.0), np.arange(20.0) + 30) == pytest.approx(1e-4)


def test_kaplan_meier_on_the_6_mp_data():
    """Freireich et al. 1963, as every textbook has it: survival .857 at 6, .807 at 7, ... .448 at 23 weeks."""
    reached_at, censored_at = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    times = [float(week) for week in (*reached_at, *censored_at)]
    reached = [True] * len(reached_at) + [False] * len(censored_at)
    found = statistics.survival(times, reached)
    survival = dict(zip(found.times.tolist(), (1 - found.reached).round(3).tolist(), strict=True))
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {time: survival[time] for time in published} == published
    assert found.median == 23
    place = found.times.tolist().index(23)
    assert 1 - found.high[place] == pytest.approx(0.188, abs=0.002)
    assert 1 - found.low[place] == pytest.approx(0.680, abs=0.002)


def test_survival_of_extremes():
    assert statistics.survival([5.0, 6.0], [False, False]).median is None
    assert statistics.survival([5.0, 6.0, 7.0], [True, True, True]).median == 6
    assert statistics.survival([5.0, 6.0, 7.0], [True, False, False]).median is None


def test_runs_needed_are_cohens():
    """Cohen 1988: d = 0.5, alpha 0.05, power 0.8 takes 64 a side; d = 0.8 takes 26; d = 0.2 takes 393 or 394."""
    sample = np.exp(np.array([-1.0, 1.0]) / math.sqrt(2))  # log deviation 1
    for d, runs in ((0.5, 64), (0.8, 26), (0.2, 394)):
        assert statistics.runs_needed(sample, math.expm1(d)) == runs
    assert statistics.runs_needed([3.0, 3.0], 0.05) == 2
    assert statistics.runs_needed([3.0], 0.05) is None


def test_variance_components_of_a_balanced_table():
    """Two-way without repeats: sigma_a = (MS_a - MS_e) / b, worked with numpy's own sums of squares."""
    generator = np.random.default_rng(5)
    table = generator.normal(0, 1, (8, 1)) + generator.normal(0, 0.5, (1, 6)) + generator.normal(0, 0.1, (8, 6))
    seeds, cards = np.repeat(np.arange(8), 6), np.tile(np.arange(6), 8)
    rows, columns, grand = table.mean(1), table.mean(0), table.mean()
    error = table - rows[:, None] - columns[None] + grand
    mse = (error**2).sum() / 35
    msa, msb = 6 * ((rows - grand) ** 2).sum() / 7, 8 * ((columns - grand) ** 2).sum() / 5
    found = statistics.variance_components(np.exp(table.ravel()), {"seed": seeds, "card": cards, "count": np.zeros(48)})
    assert found["residual"] == pytest.approx(mse)
    assert found["seed"] == pytest.approx((msa - mse) / 6)
    assert found["card"] == pytest.approx((msb - mse) / 8)
    assert found["count"] == 0


def test_the_median_of_consecutive_windows():
    values = [5.0, 1.0, 2.0, 3.0, 9.0, 4.0]
    windows = [np.mean(sorted(values[start : start + 4])[1:-1]) for start in range(3)]
    start, score = statistics.consecutive_median(values, [False] * 6, 4)
    assert score == sorted(windows)[1] == windows[start]
    assert statistics.consecutive_median([1.0] * 4, [True, True, False, False], 4) is None
    assert statistics.consecutive_median(values[:5], [False] * 5, 4)[1] == max(windows[:2])


def test_the_line_through_the_origin_and_its_prediction():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.1, 3.9, 6.2, 7.8])
    line = statistics.through_origin(x, y)
    assert line.slope == pytest.approx((x * y).sum() / (x * x).sum())
    error = ((y - line.slope * x) ** 2).sum()
    assert line.r2_uncentred == pytest.approx(1 - error / (y**2).sum())
    half = stats.t.ppf(0.975, 3) * math.sqrt(error / 3 * (1 + 25 / 30))
    assert line.predict(5.0).high - line.predict(5.0).estimate == pytest.approx(half)
