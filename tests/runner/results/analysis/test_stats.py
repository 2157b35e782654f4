"""Scores and survival curves compared with hand calculations, published tables and other packages."""

import math

import numpy as np
import pytest
from mlperf_logging.result_summarizer import result_summarizer
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import stats
from timetrial.runner.results.analysis.intervals import Sample


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


def test_coefficient_of_variation():
    assert stats.coefficient_of_variation([1.0, 2.0, 3.0]) == 0.5
    assert math.isnan(stats.coefficient_of_variation([1.0]))


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


def test_olympic_interval_is_centered_on_the_score():
    values = [8.0, 9.0, 10.0, 11.0, 30.0]
    score = stats.olympic_interval(values, Sample(tuple(values)))
    error = np.log(values).std(ddof=1) / math.sqrt(5) * scipy_stats.t.ppf(0.975, 4)
    assert (score.estimate, score.n) == (pytest.approx(10.0), 5)
    assert (score.low, score.high) == pytest.approx((10 * math.exp(-error), 10 * math.exp(error)))
    assert stats.olympic_interval(values[:4], Sample(tuple(values[:4])), 1).estimate == pytest.approx(10.0)
    assert stats.olympic_interval(values, Sample(tuple(values)), 2) is None
    repeated = stats.olympic_interval(values * 2, Sample(tuple(values)))
    assert repeated.n == 5
    assert repeated.high / repeated.estimate == pytest.approx(score.high / score.estimate)


def test_median_of_an_even_number_is_the_middle():
    """R's survfit: the middle of the step at one half."""
    assert stats.kaplan_meier([1.0, 3.0], [True, True]).median == 2.0
    assert stats.kaplan_meier([1.0, 2.0, 4.0, 9.0], [True] * 4).median == 3.0
    assert stats.kaplan_meier([1.0, 2.0], [True, False]).median == 1.0
