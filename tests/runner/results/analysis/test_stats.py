"""Statistics against hand-worked numbers, published tables and brute force."""

import math
from itertools import permutations

import numpy as np
import pytest
from mlperf_logging.result_summarizer import result_summarizer
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import stats


@pytest.mark.parametrize(
    ("values", "failed", "score"),
    [([5, 1, 3, 4, 2], 0, 3), ([5, 1, 3, 4], 1, 4), ([5, 1, 3], 2, None), ([1, 2], 0, None), ([1, 2], 1, 2)],
)
def test_the_olympic_mean(values, failed, score):
    assert stats.olympic_mean(values, failed) == score


def test_the_olympic_mean_is_the_official_one():
    generator = np.random.default_rng(1)
    for failed in (0, 1):
        values = list(generator.lognormal(size=9))
        official = result_summarizer._compute_olympic_average(list(values), failed, 1)
        assert stats.olympic_mean(values, failed) == pytest.approx(official, rel=1e-12)


def test_the_first_that_converge_by_start():
    starts, converged = [9.0, 1.0, math.nan, 3.0, None, 3.0], [True, False, True, True, True, True]
    assert stats.first_converged([1.0] * 6, converged, starts, 3) == [3, 5, 0]
    assert stats.first_converged([1.0] * 6, converged, starts) == [3, 5, 0, 2, 4]
    assert stats.first_converged([1.0] * 100, [True, False] * 50, [None] * 100) == list(range(0, 100, 2))
    assert stats.first_converged([1.0] * 100, [True] * 100, list(range(100, 0, -1))) == list(range(99, 49, -1))


def test_intervals_cover_what_they_should():
    """Of 95% intervals for the mean of 12 skewed values, 88 to 99 of 100 hold it (BCa is a little short)."""
    generator = np.random.default_rng(2)
    held = 0
    for trial in range(100):
        found = stats.interval(generator.lognormal(0, 0.4, 12), seed=trial)
        held += found.low <= math.exp(0.08) <= found.high
    assert 86 <= held <= 99


def test_few_values_have_wide_intervals_and_one_has_none():
    one, two = stats.interval([3.0]), stats.interval([3.0, 3.3])
    assert (one.estimate, one.n) == (3.0, 1)
    assert math.isnan(one.low)
    assert two.low < 2 < 5 < two.high  # t with one degree of freedom
    assert stats.interval([4.0] * 5) == stats.Interval(4.0, 4.0, 4.0, 5)
    assert stats.interval([]).n == 0
    median = stats.interval([1.0, 2.0, 3.0, 4.0, 50.0], np.median)
    assert median.estimate == 3
    assert median.low <= 3 <= median.high


def test_the_interval_of_efron_and_tibshirani():
    """An Introduction to the Bootstrap (1993), table 14.2: BCa at 90% for the variance of their spatial data."""
    data = [48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6, 0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41]
    found = stats.interval(data, np.var, level=0.90)
    assert (found.estimate, found.low, found.high) == pytest.approx((171.5, 115.8, 259.6), rel=0.03)
    assert found == stats.interval(data, np.var, level=0.90)


def test_few_values_go_by_t():
    """t at 97.5% with two degrees of freedom is 4.302653; of logs 0, 1, 2 the standard error is 1 / sqrt(3)."""
    found, factor = stats.interval([1.0, math.e, math.e**2]), math.exp(4.302653 / math.sqrt(3))
    mean = (1 + math.e + math.e**2) / 3
    assert (found.estimate, found.low, found.high) == pytest.approx((mean, mean / factor, mean * factor), rel=1e-6)
    found = stats.interval([-1.0, 0.0, 1.0])  # no logs: the plain t interval
    assert (found.low, found.high) == pytest.approx((-4.302653 / math.sqrt(3), 4.302653 / math.sqrt(3)), rel=1e-6)


def test_where_bca_does_not_exist_the_percentiles_stand_in():
    """Three of five draws are the 50 in 5.8% of resamples, so the 97.5th percentile sees it: an interval has width."""
    found = stats.interval([1.0, 1.0, 1.0, 1.0, 50.0], np.median)
    assert (found.estimate, found.low, found.high) == (1.0, 1.0, 50.0)
    rounded = stats.interval([0.3, 0.1 + 0.2, 0.3, 0.3, 0.3])
    assert rounded.low == rounded.high == rounded.estimate


def test_the_ratio_of_few_goes_by_welch():
    above, below = [2.0, 2.2, 2.5], [1.0, 1.3, 1.1, 1.2]
    found = stats.ratio(above, below)
    welch = scipy_stats.ttest_ind(np.log(above), np.log(below), equal_var=False)
    middle, ends = np.log(above).mean() - np.log(below).mean(), welch.confidence_interval()
    assert (found.estimate, found.n) == (pytest.approx((6.7 / 3) / (4.6 / 4)), 3)
    assert found.low / found.estimate == pytest.approx(math.exp(ends.low - middle))
    assert found.high / found.estimate == pytest.approx(math.exp(ends.high - middle))
    assert stats.ratio([0.3, 0.1 + 0.2], [2.0, 2.0]).high == pytest.approx(0.15)
    assert stats.ratio([2.0, 2.0], [1.0, 1.1]).low < 2 / 1.05 < stats.ratio([2.0, 2.0], [1.0, 1.1]).high
    assert stats.ratio([], [1.0]).n == 0


def test_a_ratio_turned_over_is_its_inverse():
    one, other = [2.0, 2.3, 2.1, 2.7, 2.2, 2.4], [1.0, 1.4, 1.1, 1.2, 1.3]
    there, back = stats.ratio(one, other), stats.ratio(other, one)
    assert (there.estimate, there.low, there.high) == pytest.approx(
        (1 / back.estimate, 1 / back.high, 1 / back.low), rel=0.02
    )


@pytest.mark.parametrize("n", [3, 8])
def test_the_ratio_of_known_means(n):
    generator = np.random.default_rng(3)
    held = 0
    for trial in range(60):
        above, below = generator.lognormal(1, 0.1, n), generator.lognormal(0, 0.1, n)
        found = stats.ratio(above, below, seed=trial)
        held += found.low <= math.e <= found.high
    assert 50 <= held <= 60
    assert math.isnan(stats.ratio([2.0], [1.0, 1.1]).low)
    assert stats.ratio([4.0, 4.0], [2.0, 2.0]) == stats.Interval(2.0, 2.0, 2.0, 2)


def test_the_permutation_test_counts_all_arrangements():
    one, other = [1.0, 4.0, 9.0], [3.0, 8.0, 12.0, 20.0]
    both, seen = one + other, abs(np.mean(one) - np.mean(other))
    hits = [abs(np.mean(order[:3]) - np.mean(order[3:])) >= seen - 1e-12 for order in permutations(both)]
    assert stats.permutation_p(one, other) == pytest.approx(np.mean(hits))
    assert stats.permutation_p([4.0] * 5, [12.0] * 5) == pytest.approx(2 / math.comb(10, 5))
    assert stats.permutation_p([4.0] * 5, [4.0] * 5) == 1
    assert math.isnan(stats.permutation_p([1.0], [2.0]))
    assert math.isnan(stats.permutation_p([], [2.0, 3.0]))
    assert stats.permutation_p([10.0], [1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1 / 6)
    assert stats.permutation_p([0.8, 0.6, 0.5], [0.3, 0.3, 0.1]) == pytest.approx(2 / 20)  # equal but for rounding
    for unit in (1e-12, 1e12):
        assert stats.permutation_p(np.array(one) * unit, np.array(other) * unit) == pytest.approx(np.mean(hits))
    assert stats.permutation_p(np.arange(20.0), np.arange(20.0) + 30) == pytest.approx(1e-4)


def test_kaplan_meier_on_the_6_mp_data():
    """Freireich et al. 1963, as every textbook has it: survival .857 at 6, .807 at 7, ... .448 at 23 weeks."""
    reached_at, censored_at = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    times = [float(week) for week in (*reached_at, *censored_at)]
    reached = [True] * len(reached_at) + [False] * len(censored_at)
    found = stats.survival(times, reached)
    survival = dict(zip(found.times.tolist(), (1 - found.reached).round(3).tolist(), strict=True))
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {time: survival[time] for time in published} == published
    assert found.median == 23
    place = found.times.tolist().index(23)
    assert 1 - found.high[place] == pytest.approx(0.188, abs=0.002)
    assert 1 - found.low[place] == pytest.approx(0.680, abs=0.002)


def test_the_band_is_lifelines():
    """KaplanMeierFitter of lifelines 0.30.3 on the same data; before the first and after the last there is no band."""
    times = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    found = stats.survival(times, [True] * 9 + [False] * 12)
    low = {6: 0.619718, 9: 0.563147, 10: 0.503200, 13: 0.431610, 22: 0.267779, 35: 0.188052}
    high = {6: 0.951552, 9: 0.922809, 10: 0.889362, 13: 0.849066, 22: 0.746791, 35: 0.680143}
    bands = dict(zip(found.times.tolist(), zip(1 - found.high, 1 - found.low, strict=True), strict=True))
    for time in low:
        assert bands[time] == pytest.approx((low[time], high[time]), abs=1e-6)
    placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    all_of_them = stats.survival(placebo, [True] * 21)
    assert all_of_them.median == 8
    assert (1 - all_of_them.reached).round(3).tolist()[:6] == [0.905, 0.81, 0.762, 0.667, 0.571, 0.381]
    assert (all_of_them.reached[-1], math.isnan(all_of_them.low[-1])) == (1, True)


def test_survival_of_extremes():
    none = stats.survival([6.0, 5.0], [False, False])
    assert none.median is None
    assert (none.times.tolist(), none.reached.tolist()) == ([5, 6], [0, 0])  # censored, not dropped
    assert np.isnan(none.high).all()
    assert stats.survival([], []).times.size == 0
    assert stats.survival([5.0, 6.0, 7.0], [False, True, False]).median == 6
    assert stats.survival([5.0, 6.0, 7.0], [True, True, True]).median == 6
    assert stats.survival([5.0, 6.0, 7.0], [True, False, False]).median is None


def test_runs_needed_are_cohens():
    """Cohen 1988: d = 0.5, alpha 0.05, power 0.8 takes 64 a side; d = 0.8 takes 26; d = 0.2 takes 393 or 394."""
    sample = np.exp(np.array([-1.0, 1.0]) / math.sqrt(2))  # log deviation 1
    for d, runs in ((0.5, 64), (0.8, 26), (0.2, 394)):
        assert stats.runs_needed(sample, math.expm1(d)) == runs
        assert stats.runs_needed(sample, math.expm1(-d)) == runs
    assert stats.runs_needed([3.0, 3.0], 0.05) == 2
    assert stats.runs_needed(sample, 0.0) is None
    with pytest.raises(ValueError, match="domain"):
        stats.runs_needed(sample, -1.0)
    assert stats.runs_needed([3.0], 0.05) is None


@pytest.mark.parametrize(
    ("d", "power", "alpha", "runs"),
    [(1.0, 0.8, 0.05, 17), (1.5, 0.9, 0.05, 11), (2.0, 0.8, 0.05, 6), (2.0, 0.8, 0.01, 8), (3.0, 0.9, 0.05, 4),
     (4.0, 0.8, 0.05, 3), (6.0, 0.8, 0.05, 2), (6.0, 0.84, 0.05, 3), (9.0, 0.99, 0.05, 3), (40.0, 0.8, 0.05, 2)],
)  # fmt: skip
def test_few_runs_needed(d, power, alpha, runs):
    """TTestIndPower of statsmodels 0.15.0: 16.71, 10.40, 5.09, 7.66, 3.62 and 2.41 runs; d of 6 has power 0.836 at 2.

    d of 9 has power 0.982 at 2 and above 0.999 at 3, by scipy's ttest_ind on a million simulated pairs of sets.
    """
    sample = np.exp(np.array([-1.0, 1.0]) / math.sqrt(2))
    assert stats.runs_needed(sample, math.expm1(d), power, alpha) == runs


def test_the_spread():
    assert stats.spread([1.0, 2.0, 3.0]) == 0.5
    assert math.isnan(stats.spread([1.0]))


def test_variance_components_of_a_balanced_table():
    """Two-way without repeats: sigma_a = (MS_a - MS_e) / b, worked with numpy's own sums of squares."""
    generator = np.random.default_rng(5)
    table = generator.normal(0, 1, (8, 1)) + generator.normal(0, 0.5, (1, 6)) + generator.normal(0, 0.1, (8, 6))
    seeds, cards = np.repeat(np.arange(8), 6), np.tile(np.arange(6), 8)
    rows, columns, grand = table.mean(1), table.mean(0), table.mean()
    error = table - rows[:, None] - columns[None] + grand
    mse = (error**2).sum() / 35
    msa, msb = 6 * ((rows - grand) ** 2).sum() / 7, 8 * ((columns - grand) ** 2).sum() / 5
    found = stats.variance_components(np.exp(table.ravel()), {"seed": seeds, "card": cards, "count": np.zeros(48)})
    assert found["residual"] == pytest.approx(mse)
    assert found["seed"] == pytest.approx((msa - mse) / 6)
    assert found["card"] == pytest.approx((msb - mse) / 8)
    assert found["count"] == 0


# log times of 6 seeds x 5 cards x 2 runs
LOGS = [
    *(3.18, 3.26, 2.99, 2.96, 3.29, 3.32, 2.44, 2.45, 3.56, 3.40, 3.70, 3.89, 3.60, 3.47, 3.82, 3.86, 3.01, 2.98, 4.15),
    *(4.24, 3.76, 3.71, 3.63, 3.67, 3.81, 3.89, 3.16, 3.04, 4.00, 4.12, 2.94, 3.03, 2.60, 2.66, 2.89, 2.80, 2.20, 2.24),
    *(3.14, 3.35, 3.10, 3.08, 2.87, 2.93, 2.94, 3.14, 2.36, 2.12, 3.36, 3.30, 2.99, 2.86, 2.72, 2.75, 2.87, 3.02, 2.17),
    *(2.23, 3.15, 3.31),
]
SEEDS, CARDS = np.repeat(np.arange(6), 10), np.tile(np.repeat(np.arange(5), 2), 6)
KEPT = np.array([place % 7 != 3 and place % 11 != 5 for place in range(60)])


def test_variance_components_of_a_balanced_table_are_those_of_reml():
    """MixedLM of statsmodels 0.15.0 with crossed effects: REML equals the analysis of variance on balanced data."""
    found = stats.variance_components(np.exp(LOGS), {"seed": SEEDS, "card": CARDS})
    assert found == pytest.approx({"seed": 0.171367, "card": 0.155349, "residual": 0.00649631}, rel=1e-3)


def test_variance_components_of_an_unbalanced_table():
    """Against sums of squares of statsmodels (anova_lm, type 2) and the expectations by hand, and near to REML.

    What a seed's squares after the cards' expect: a run of seed s on card c weighs 1 - n_sc / n_c in its own variance.
    """
    found = stats.variance_components(np.exp(LOGS)[KEPT], {"seed": SEEDS[KEPT], "card": CARDS[KEPT]})
    counts = np.zeros((6, 5))
    np.add.at(counts, (SEEDS[KEPT], CARDS[KEPT]), 1)
    residual = 0.252253 / 37
    seed = (6.589412 - 5 * residual) / (counts.sum() - (counts**2 / counts.sum(0)).sum())
    card = (5.106271 - 4 * residual) / (counts.sum() - (counts.T**2 / counts.sum(1)).sum())
    assert found == pytest.approx({"seed": seed, "card": card, "residual": residual}, rel=1e-5)
    assert found == pytest.approx({"seed": 0.182169, "card": 0.148745, "residual": 0.00681643}, rel=0.1)  # REML


def test_variance_components_say_what_they_cannot_tell():
    values = [1.0, 2.0, 3.0, 4.0, 2.5, 1.5]
    together = {"card": [0, 0, 1, 1, 2, 2], "count": [8, 8, 4, 4, 2, 2], "seed": [1, 2, 1, 2, 1, 2]}
    found = stats.variance_components(values, together)
    assert [math.isnan(found[name]) for name in ("card", "count", "seed", "residual")] == [True, True, False, False]
    assert math.isnan(stats.variance_components(values, {"run": range(6)})["residual"])
    alternating = stats.variance_components([1.0, 2.0, 1.0, 2.0], {"card": [0, 0, 1, 1]})
    assert alternating["card"] == 0  # estimated below 0


def test_the_median_of_consecutive_windows():
    values = [5.0, 1.0, 2.0, 3.0, 9.0, 4.0]
    windows = [np.mean(sorted(values[start : start + 4])[1:-1]) for start in range(3)]
    start, score = stats.consecutive_median(values, [False] * 6, 4)
    assert score == sorted(windows)[1] == windows[start]
    assert stats.consecutive_median([1.0] * 4, [True, True, False, False], 4) is None
    assert stats.consecutive_median(values[:5], [False] * 5, 4)[1] == max(windows[:2])
    assert stats.consecutive_median([1.0] * 3, [False] * 3, 4) is None


def test_failed_runs_in_consecutive_windows():
    """Scores by hand: 3, 3, 5, and none of two failures, the slowest; the slower middle of the four is 5."""
    values, failed = [1.0, 3.0, 5.0, 2.0, 9.0, 4.0], [False, False, False, False, True, True]
    scores = [stats.olympic_mean([1.0, 3.0, 5.0]), stats.olympic_mean([3.0, 5.0, 2.0])]
    assert scores == [3, 3]
    assert stats.consecutive_median(values, failed, 3) == (2, 5)  # 5, 2 and a failure: 5
    assert stats.consecutive_median(values[1:], failed[1:], 3) == (1, 5)
    assert stats.consecutive_median([*values[3:], 1.0], [True, True, False, False], 3) is None  # the median fails


def test_the_line_through_the_origin_and_its_prediction():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.1, 3.9, 6.2, 7.8])
    line = stats.through_origin(x, y)
    assert line.slope == pytest.approx((x * y).sum() / (x * x).sum())
    error = ((y - line.slope * x) ** 2).sum()
    assert line.r2_uncentred == pytest.approx(1 - error / (y**2).sum())
    half = scipy_stats.t.ppf(0.975, 3) * math.sqrt(error / 3 * (1 + 25 / 30))
    assert line.predict(5.0).high - line.predict(5.0).estimate == pytest.approx(half)


# Six cards of a real comparison: peak FP32 TFLOPS, milliseconds of a batch in evaluation and in training.
PEAKS = [14.90, 11.34, 14.13, 13.45, 8.14, 12.74]


@pytest.mark.parametrize(
    ("milliseconds", "uncentred", "centred"),
    [([31.3, 39.3, 26.2, 30.5, 72.4, 45.6], 0.976, 0.70), ([108.8, 131.9, 83.5, 102.9, 223.6, 146.9], 0.975, 0.66)],
)
def test_a_line_through_the_origin_flatters_itself(milliseconds, uncentred, centred):
    line = stats.through_origin(PEAKS, 1 / np.array(milliseconds))
    assert (round(line.r2_uncentred, 3), round(line.r2_centred, 2), line.n) == (uncentred, centred, 6)
    assert line.residuals.shape == (6,)


def test_lines_that_say_little():
    flat = stats.through_origin([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert math.isnan(flat.r2_centred)
    assert flat.r2_uncentred == pytest.approx(6 / 7)
    single = stats.through_origin([2.0], [4.0]).predict(3.0)
    assert (single.estimate, math.isnan(single.low)) == (6, True)
    with pytest.raises(ValueError, match="origin"):
        stats.through_origin([0.0, 0.0], [1.0, 2.0])
