"""Judgement of groups with failed runs, against exact binomial intervals and by hand."""

import math

import pytest
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis.failures import ExpectedTimeRatio, Outcomes


@pytest.mark.parametrize(("successes", "failures"), [(4, 4), (5, 0), (0, 3), (1, 9)])
def test_success_rate_is_clopper_pearson(successes, failures):
    exact = scipy_stats.binomtest(successes, successes + failures).proportion_ci(0.95, method="exact")
    rate = Outcomes((10.0,) * successes, (20.0,) * failures).success_rate()
    assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high))


def test_expected_time_is_all_seconds_over_successes():
    outcomes = Outcomes((9.0, 10.0, 11.0, 10.0), (20.0, 20.0, 5.0, 20.0))
    expected = outcomes.expected_time()
    assert expected.estimate == pytest.approx((40 + 65) / 4)
    assert expected.low < 26.25 < expected.high
    assert Outcomes((), (20.0,)).expected_time().estimate == math.inf


def test_a_group_without_failures_fails_at_the_cost_of_the_others():
    """Failures may come at once or at the cap: their spread counts, on both sides."""
    reliable = Outcomes((10.0, 10.2, 9.9, 10.1, 10.0), ())
    cheap, dear = reliable.expected_time(), reliable.expected_time(0.95, (80.0, 80.0))
    assert cheap.estimate == dear.estimate == pytest.approx(10.04)
    assert dear.high - dear.estimate == pytest.approx(80 / 10.2 * (cheap.high - cheap.estimate), rel=0.02)
    scattered = reliable.expected_time(0.95, (10.0, 150.0))
    assert scattered.high > dear.high
    assert reliable.expected_time().low == pytest.approx(scattered.low)


def test_restricted_mean_counts_failed_runs_with_the_horizon():
    outcomes = Outcomes((9.0, 10.0, 11.0, 19.0), (20.0, 3.0))
    restricted = outcomes.restricted_mean(15.0)
    assert restricted.estimate == pytest.approx((9 + 10 + 11 + 3 * 15) / 6)
    assert restricted.low < restricted.estimate < restricted.high <= 15.0 + 5.0


def test_a_reliable_group_beats_a_faster_one_that_fails():
    reliable, failing = Outcomes((10.0, 10.2, 9.9, 10.1) * 4, ()), Outcomes((9.0, 9.1, 8.9, 9.0) * 2, (20.0,) * 8)
    ratio = ExpectedTimeRatio(reliable, failing)
    interval = ratio.interval()
    assert interval.estimate == pytest.approx(10.05 / (9.0 + 20.0), rel=1e-3)
    assert interval.high < 1
    assert ratio.p_value < 0.05
    # The interval of level 1 - p ends at 1.
    assert ratio.interval(1 - ratio.p_value).high == pytest.approx(1.0, abs=1e-4)
    assert not ExpectedTimeRatio(reliable, Outcomes((), (20.0,))).interval().is_bounded
