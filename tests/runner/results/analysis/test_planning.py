"""Planned numbers of runs compared with published tables and simulated studies."""

import math

import numpy as np
import pytest

from timetrial.runner.results.analysis import planning
from timetrial.runner.results.analysis.intervals import Sample, log_ratio
from timetrial.runner.results.analysis.verdicts import Verdict


@pytest.mark.parametrize(("d", "runs"), [(0.5, 64), (0.8, 26), (0.2, 394)])
def test_power_matches_cohen(d, runs):
    """Cohen 1988: d = 0.5, alpha 0.05, power 0.8 needs 64 runs per group; d = 0.8: 26; d = 0.2: 393 or 394."""
    assert planning.power_of(runs, math.expm1(d), 1.0) >= 0.8 > planning.power_of(runs - 1, math.expm1(d), 1.0)
    assert planning.power_of(runs, math.expm1(-d), 1.0) == pytest.approx(planning.power_of(runs, math.expm1(d), 1.0))


@pytest.mark.parametrize(
    ("d", "power", "alpha", "runs"),
    [(1.0, 0.8, 0.05, 17), (1.5, 0.9, 0.05, 11), (2.0, 0.8, 0.05, 6), (2.0, 0.8, 0.01, 8), (3.0, 0.9, 0.05, 4),
     (4.0, 0.8, 0.05, 3), (6.0, 0.84, 0.05, 3), (9.0, 0.99, 0.05, 3)],
)  # fmt: skip
def test_few_runs(d, power, alpha, runs):
    """TTestIndPower of statsmodels 0.15.0: 16.71, 10.40, 5.09, 7.66, 3.62 and 2.41 runs; d of 6 has power 0.836 at 2.

    d of 9 has power 0.982 at 2 and above 0.999 at 3, by scipy's ttest_ind on a million simulated pairs of samples.
    """
    powers = [planning.power_of(count, math.expm1(d), 1.0, alpha) for count in (runs - 1, runs)]
    assert powers[0] < power <= powers[1]


def test_plan_is_a_range_from_the_spread_seen_to_its_upper_limit():
    """With s = 1 from 11 values the upper 80% limit is sqrt(10 / 6.1791) = 1.272 (chi-squared table)."""
    values = np.random.default_rng(1).standard_normal(11)
    logs = (values - values.mean()) / values.std(ddof=1)
    plan = planning.runs_needed(Sample(tuple(np.exp(logs))), math.expm1(0.5))
    assert plan.low == 64
    assert planning.power_of(plan.high, math.expm1(0.5), 1.2722) == pytest.approx(0.8, abs=0.005)
    assert str(plan) == f"64 to {plan.high}"


def test_two_runs_are_no_pilot():
    assert planning.runs_needed(Sample((3.0, 3.1)), 0.05) is None
    assert planning.runs_needed(Sample((3.0, 3.0, 3.0)), 0.05) == planning.RunsNeeded(3, 3)
    # Epochs 4 4 4 are uncertain by their grid of one epoch.
    assert planning.runs_needed(Sample((4.0, 4.0, 4.0), 1 / math.sqrt(12) / 4), 0.05).high > 20


def test_detectable_difference_inverts_the_power():
    difference = planning.detectable_difference(10, 0.04)
    assert planning.power_of(10, difference, 0.04) == pytest.approx(0.8, abs=1e-6)


def test_sequential_looks_stop_with_the_right_verdict():
    slow, fast = Sample((100.0, 101.0, 99.5)), Sample((80.0, 80.5, 79.0))
    look = planning.next_look(log_ratio(slow, fast), (slow, fast))
    assert look.verdict is Verdict.FASTER
    assert look.level == pytest.approx(0.993)
    of_three = planning.next_look(log_ratio(slow, fast), (slow, fast), num_pairs=3)
    assert of_three.level == pytest.approx(1 - 0.007 / 3)
    assert of_three.interval.high > look.interval.high
    assert planning.next_look(log_ratio(fast, slow), (fast, slow)).verdict is Verdict.SLOWER
    alike = Sample((100.5, 100.2, 99.8))
    assert planning.next_look(log_ratio(slow, alike), (slow, alike)).verdict in (Verdict.EQUAL, None)
    noisy = Sample((80.0, 110.0, 95.0))
    unsure = planning.next_look(log_ratio(slow, noisy), (slow, noisy))
    assert unsure.verdict is None
    assert unsure.total_runs > 3
    assert planning.next_look(log_ratio(Sample((1.0, 2.0)), slow), (slow, slow)) is None
