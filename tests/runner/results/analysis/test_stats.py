"""Statistics compared with hand calculations, published tables, other packages and brute force."""

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
def test_olympic_mean(values, failed, score):
    assert stats.olympic_mean(values, failed) == score


def test_olympic_mean_matches_mlperf_logging():
    generator = np.random.default_rng(1)
    for failed in (0, 1):
        values = list(generator.lognormal(size=9))
        official = result_summarizer._compute_olympic_average(list(values), failed, 1)
        assert stats.olympic_mean(values, failed) == pytest.approx(official, rel=1e-12)


def test_first_converged_by_start_time():
    starts, converged = [9.0, 1.0, math.nan, 3.0, None, 3.0], [True, False, True, True, True, True]
    assert stats.first_converged([1.0] * 6, converged, starts, 3) == [3, 5, 0]
    assert stats.first_converged([1.0] * 6, converged, starts) == [3, 5, 0, 2, 4]
    assert stats.first_converged([1.0] * 100, [True, False] * 50, [None] * 100) == list(range(0, 100, 2))
    assert stats.first_converged([1.0] * 100, [True] * 100, list(range(100, 0, -1))) == list(range(99, 49, -1))


def test_confidence_interval_coverage():
    """Of 100 95% intervals for the mean of 12 skewed values, 86 to 99 contain it (BCa intervals are slightly short)."""
    generator = np.random.default_rng(2)
    num_covered = 0
    for trial in range(100):
        result = stats.confidence_interval(generator.lognormal(0, 0.4, 12), seed=trial)
        num_covered += result.low <= math.exp(0.08) <= result.high
    assert 86 <= num_covered <= 99


def test_intervals_of_one_to_five_values():
    single, pair = stats.confidence_interval([3.0]), stats.confidence_interval([3.0, 3.3])
    assert (single.estimate, single.n) == (3.0, 1)
    assert math.isnan(single.low)
    assert pair.low < 2 < 5 < pair.high  # t with one degree of freedom
    assert stats.confidence_interval([4.0] * 5) == stats.Interval(4.0, 4.0, 4.0, 5)
    assert stats.confidence_interval([]).n == 0
    median = stats.confidence_interval([1.0, 2.0, 3.0, 4.0, 50.0], np.median)
    assert median.estimate == 3
    assert median.low <= 3 <= median.high


def test_bca_matches_efron_and_tibshirani():
    """An Introduction to the Bootstrap (1993), table 14.2: BCa at 90% for the variance of their spatial data."""
    data = [48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6, 0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41]
    result = stats.confidence_interval(data, np.var, level=0.90)
    assert (result.estimate, result.low, result.high) == pytest.approx((171.5, 115.8, 259.6), rel=0.03)
    assert result == stats.confidence_interval(data, np.var, level=0.90)


def test_few_values_use_t_interval():
    """t at 97.5% with two degrees of freedom is 4.302653; of logs 0, 1, 2 the standard error is 1 / sqrt(3)."""
    result, factor = stats.confidence_interval([1.0, math.e, math.e**2]), math.exp(4.302653 / math.sqrt(3))
    mean = (1 + math.e + math.e**2) / 3
    assert (result.estimate, result.low, result.high) == pytest.approx((mean, mean / factor, mean * factor), rel=1e-6)
    result = stats.confidence_interval([-1.0, 0.0, 1.0])  # no logarithm: t interval on the linear scale
    assert (result.low, result.high) == pytest.approx((-4.302653 / math.sqrt(3), 4.302653 / math.sqrt(3)), rel=1e-6)


def test_percentiles_where_bca_is_undefined():
    """The median of a resample is 50 in 5.8% of resamples, so the 97.5th percentile is 50."""
    result = stats.confidence_interval([1.0, 1.0, 1.0, 1.0, 50.0], np.median)
    assert (result.estimate, result.low, result.high) == (1.0, 1.0, 50.0)
    rounded = stats.confidence_interval([0.3, 0.1 + 0.2, 0.3, 0.3, 0.3])
    assert rounded.low == rounded.high == rounded.estimate


def test_ratio_of_few_values_uses_welch():
    above, below = [2.0, 2.2, 2.5], [1.0, 1.3, 1.1, 1.2]
    result = stats.ratio_of_means(above, below)
    welch = scipy_stats.ttest_ind(np.log(above), np.log(below), equal_var=False)
    middle, ends = np.log(above).mean() - np.log(below).mean(), welch.confidence_interval()
    assert (result.estimate, result.n) == (pytest.approx((6.7 / 3) / (4.6 / 4)), 3)
    assert result.low / result.estimate == pytest.approx(math.exp(ends.low - middle))
    assert result.high / result.estimate == pytest.approx(math.exp(ends.high - middle))
    assert stats.ratio_of_means([0.3, 0.1 + 0.2], [2.0, 2.0]).high == pytest.approx(0.15)
    assert (
        stats.ratio_of_means([2.0, 2.0], [1.0, 1.1]).low < 2 / 1.05 < stats.ratio_of_means([2.0, 2.0], [1.0, 1.1]).high
    )
    assert stats.ratio_of_means([], [1.0]).n == 0


def test_inverted_ratio_is_inverse():
    above, below = [2.0, 2.3, 2.1, 2.7, 2.2, 2.4], [1.0, 1.4, 1.1, 1.2, 1.3]
    ratio, inverse = stats.ratio_of_means(above, below), stats.ratio_of_means(below, above)
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx(
        (1 / inverse.estimate, 1 / inverse.high, 1 / inverse.low), rel=0.02
    )


@pytest.mark.parametrize("n", [3, 8])
def test_ratio_coverage(n):
    generator = np.random.default_rng(3)
    num_covered = 0
    for trial in range(60):
        above, below = generator.lognormal(1, 0.1, n), generator.lognormal(0, 0.1, n)
        result = stats.ratio_of_means(above, below, seed=trial)
        num_covered += result.low <= math.e <= result.high
    assert 50 <= num_covered <= 60
    assert math.isnan(stats.ratio_of_means([2.0], [1.0, 1.1]).low)
    assert stats.ratio_of_means([4.0, 4.0], [2.0, 2.0]) == stats.Interval(2.0, 2.0, 2.0, 2)


def test_permutation_test_counts_all_permutations():
    first, second = [1.0, 4.0, 9.0], [3.0, 8.0, 12.0, 20.0]
    pooled, observed = first + second, abs(np.mean(first) - np.mean(second))
    as_extreme = [abs(np.mean(order[:3]) - np.mean(order[3:])) >= observed - 1e-12 for order in permutations(pooled)]
    assert stats.permutation_p_value(first, second) == pytest.approx(np.mean(as_extreme))
    assert stats.permutation_p_value([4.0] * 5, [12.0] * 5) == pytest.approx(2 / math.comb(10, 5))
    assert stats.permutation_p_value([4.0] * 5, [4.0] * 5) == 1
    assert math.isnan(stats.permutation_p_value([1.0], [2.0]))
    assert math.isnan(stats.permutation_p_value([], [2.0, 3.0]))
    assert stats.permutation_p_value([10.0], [1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1 / 6)
    assert stats.permutation_p_value([0.8, 0.6, 0.5], [0.3, 0.3, 0.1]) == pytest.approx(2 / 20)  # equal up to rounding
    for unit in (1e-12, 1e12):
        assert stats.permutation_p_value(np.array(first) * unit, np.array(second) * unit) == pytest.approx(
            np.mean(as_extreme)
        )
    assert stats.permutation_p_value(np.arange(20.0), np.arange(20.0) + 30) == pytest.approx(1e-4)


def test_kaplan_meier_on_6_mp_data():
    """Freireich et al. 1963: survival is .857 at 6, .807 at 7, ... .448 at 23 weeks."""
    reached_at, censored_at = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    times = [float(week) for week in (*reached_at, *censored_at)]
    reached = [True] * len(reached_at) + [False] * len(censored_at)
    result = stats.kaplan_meier(times, reached)
    survival = dict(zip(result.times.tolist(), (1 - result.reached).round(3).tolist(), strict=True))
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {time: survival[time] for time in published} == published
    assert result.median == 23
    index = result.times.tolist().index(23)
    assert 1 - result.high[index] == pytest.approx(0.188, abs=0.002)
    assert 1 - result.low[index] == pytest.approx(0.680, abs=0.002)


def test_band_matches_lifelines():
    """KaplanMeierFitter of lifelines 0.30.3 on the same data; no band before the first and after the last event."""
    times = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    result = stats.kaplan_meier(times, [True] * 9 + [False] * 12)
    low = {6: 0.619718, 9: 0.563147, 10: 0.503200, 13: 0.431610, 22: 0.267779, 35: 0.188052}
    high = {6: 0.951552, 9: 0.922809, 10: 0.889362, 13: 0.849066, 22: 0.746791, 35: 0.680143}
    bands = dict(zip(result.times.tolist(), zip(1 - result.high, 1 - result.low, strict=True), strict=True))
    for time in low:
        assert bands[time] == pytest.approx((low[time], high[time]), abs=1e-6)
    placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    all_reached = stats.kaplan_meier(placebo, [True] * 21)
    assert all_reached.median == 8
    assert (1 - all_reached.reached).round(3).tolist()[:6] == [0.905, 0.81, 0.762, 0.667, 0.571, 0.381]
    assert (all_reached.reached[-1], math.isnan(all_reached.low[-1])) == (1, True)


def test_kaplan_meier_edge_cases():
    none = stats.kaplan_meier([6.0, 5.0], [False, False])
    assert none.median is None
    assert (none.times.tolist(), none.reached.tolist()) == ([5, 6], [0, 0])  # censored, not dropped
    assert np.isnan(none.high).all()
    assert stats.kaplan_meier([], []).times.size == 0
    assert stats.kaplan_meier([5.0, 6.0, 7.0], [False, True, False]).median == 6
    assert stats.kaplan_meier([5.0, 6.0, 7.0], [True, True, True]).median == 6
    assert stats.kaplan_meier([5.0, 6.0, 7.0], [True, False, False]).median is None


def test_runs_needed_match_cohen():
    """Cohen 1988: d = 0.5, alpha 0.05, power 0.8 needs 64 runs per group; d = 0.8: 26; d = 0.2: 393 or 394."""
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

    d of 9 has power 0.982 at 2 and above 0.999 at 3, by scipy's ttest_ind on a million simulated pairs of samples.
    """
    sample = np.exp(np.array([-1.0, 1.0]) / math.sqrt(2))
    assert stats.runs_needed(sample, math.expm1(d), power, alpha) == runs


def test_coefficient_of_variation():
    assert stats.coefficient_of_variation([1.0, 2.0, 3.0]) == 0.5
    assert math.isnan(stats.coefficient_of_variation([1.0]))


def test_variance_components_of_balanced_table():
    """Two-way without repeats: sigma_a = (MS_a - MS_e) / b, with sums of squares by numpy."""
    generator = np.random.default_rng(5)
    table = generator.normal(0, 1, (8, 1)) + generator.normal(0, 0.5, (1, 6)) + generator.normal(0, 0.1, (8, 6))
    seeds, gpus = np.repeat(np.arange(8), 6), np.tile(np.arange(6), 8)
    rows, columns, grand = table.mean(1), table.mean(0), table.mean()
    error = table - rows[:, None] - columns[None] + grand
    mse = (error**2).sum() / 35
    msa, msb = 6 * ((rows - grand) ** 2).sum() / 7, 8 * ((columns - grand) ** 2).sum() / 5
    result = stats.variance_components(np.exp(table.ravel()), {"seed": seeds, "gpu": gpus, "count": np.zeros(48)})
    assert result["residual"] == pytest.approx(mse)
    assert result["seed"] == pytest.approx((msa - mse) / 6)
    assert result["gpu"] == pytest.approx((msb - mse) / 8)
    assert result["count"] == 0


# logarithms of times: 6 seeds x 5 GPUs x 2 runs
LOGS = [
    *(3.18, 3.26, 2.99, 2.96, 3.29, 3.32, 2.44, 2.45, 3.56, 3.40, 3.70, 3.89, 3.60, 3.47, 3.82, 3.86, 3.01, 2.98, 4.15),
    *(4.24, 3.76, 3.71, 3.63, 3.67, 3.81, 3.89, 3.16, 3.04, 4.00, 4.12, 2.94, 3.03, 2.60, 2.66, 2.89, 2.80, 2.20, 2.24),
    *(3.14, 3.35, 3.10, 3.08, 2.87, 2.93, 2.94, 3.14, 2.36, 2.12, 3.36, 3.30, 2.99, 2.86, 2.72, 2.75, 2.87, 3.02, 2.17),
    *(2.23, 3.15, 3.31),
]
SEEDS, GPUS = np.repeat(np.arange(6), 10), np.tile(np.repeat(np.arange(5), 2), 6)
KEPT = np.array([index % 7 != 3 and index % 11 != 5 for index in range(60)])


def test_variance_components_of_balanced_table_match_reml():
    """MixedLM of statsmodels 0.15.0 with crossed effects: REML equals the analysis of variance on balanced data."""
    result = stats.variance_components(np.exp(LOGS), {"seed": SEEDS, "gpu": GPUS})
    assert result == pytest.approx({"seed": 0.171367, "gpu": 0.155349, "residual": 0.00649631}, rel=1e-3)


def test_variance_components_of_unbalanced_table():
    """Against sums of squares of statsmodels (anova_lm, type 2) and expectations by hand, and close to REML.

    In the expected sum of squares of the seeds, a run of seed s on GPU c has the weight 1 - n_sc / n_c.
    """
    result = stats.variance_components(np.exp(LOGS)[KEPT], {"seed": SEEDS[KEPT], "gpu": GPUS[KEPT]})
    counts = np.zeros((6, 5))
    np.add.at(counts, (SEEDS[KEPT], GPUS[KEPT]), 1)
    residual = 0.252253 / 37
    seed = (6.589412 - 5 * residual) / (counts.sum() - (counts**2 / counts.sum(0)).sum())
    gpu = (5.106271 - 4 * residual) / (counts.sum() - (counts.T**2 / counts.sum(1)).sum())
    assert result == pytest.approx({"seed": seed, "gpu": gpu, "residual": residual}, rel=1e-5)
    assert result == pytest.approx({"seed": 0.182169, "gpu": 0.148745, "residual": 0.00681643}, rel=0.1)  # REML


def test_variance_components_that_are_not_identifiable():
    values = [1.0, 2.0, 3.0, 4.0, 2.5, 1.5]
    collinear = {"gpu": [0, 0, 1, 1, 2, 2], "count": [8, 8, 4, 4, 2, 2], "seed": [1, 2, 1, 2, 1, 2]}
    result = stats.variance_components(values, collinear)
    assert [math.isnan(result[name]) for name in ("gpu", "count", "seed", "residual")] == [True, True, False, False]
    assert math.isnan(stats.variance_components(values, {"run": range(6)})["residual"])
    alternating = stats.variance_components([1.0, 2.0, 1.0, 2.0], {"gpu": [0, 0, 1, 1]})
    assert alternating["gpu"] == 0  # estimated below 0


def test_median_window():
    values = [5.0, 1.0, 2.0, 3.0, 9.0, 4.0]
    windows = [np.mean(sorted(values[start : start + 4])[1:-1]) for start in range(3)]
    start, score = stats.median_window(values, [False] * 6, 4)
    assert score == sorted(windows)[1] == windows[start]
    assert stats.median_window([1.0] * 4, [True, True, False, False], 4) is None
    assert stats.median_window(values[:5], [False] * 5, 4)[1] == max(windows[:2])
    assert stats.median_window([1.0] * 3, [False] * 3, 4) is None


def test_median_window_with_failed_runs():
    """The scores are 3, 3, 5 and none for the window with two failures; the slower middle one of the four is 5."""
    values, failed = [1.0, 3.0, 5.0, 2.0, 9.0, 4.0], [False, False, False, False, True, True]
    scores = [stats.olympic_mean([1.0, 3.0, 5.0]), stats.olympic_mean([3.0, 5.0, 2.0])]
    assert scores == [3, 3]
    assert stats.median_window(values, failed, 3) == (2, 5)  # 5, 2 and a failed run: 5
    assert stats.median_window(values[1:], failed[1:], 3) == (1, 5)
    assert (
        stats.median_window([*values[3:], 1.0], [True, True, False, False], 3) is None
    )  # the median window has no score


def test_fit_through_origin_and_prediction():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.1, 3.9, 6.2, 7.8])
    line = stats.fit_through_origin(x, y)
    assert line.slope == pytest.approx((x * y).sum() / (x * x).sum())
    error = ((y - line.slope * x) ** 2).sum()
    assert line.r2_uncentered == pytest.approx(1 - error / (y**2).sum())
    half = scipy_stats.t.ppf(0.975, 3) * math.sqrt(error / 3 * (1 + 25 / 30))
    assert line.predict(5.0).high - line.predict(5.0).estimate == pytest.approx(half)


# Six GPUs of a published comparison: peak FP32 TFLOP/s; milliseconds per batch in evaluation and in training.
PEAKS = [14.90, 11.34, 14.13, 13.45, 8.14, 12.74]


@pytest.mark.parametrize(
    ("milliseconds", "uncentred", "centred"),
    [([31.3, 39.3, 26.2, 30.5, 72.4, 45.6], 0.976, 0.70), ([108.8, 131.9, 83.5, 102.9, 223.6, 146.9], 0.975, 0.66)],
)
def test_uncentered_r2_exceeds_centered(milliseconds, uncentred, centred):
    line = stats.fit_through_origin(PEAKS, 1 / np.array(milliseconds))
    assert (round(line.r2_uncentered, 3), round(line.r2_centered, 2), line.n) == (uncentred, centred, 6)
    assert line.residuals.shape == (6,)


def test_fits_of_degenerate_data():
    flat = stats.fit_through_origin([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert math.isnan(flat.r2_centered)
    assert flat.r2_uncentered == pytest.approx(6 / 7)
    single = stats.fit_through_origin([2.0], [4.0]).predict(3.0)
    assert (single.estimate, math.isnan(single.low)) == (6, True)
    with pytest.raises(ValueError, match="origin"):
        stats.fit_through_origin([0.0, 0.0], [1.0, 2.0])
