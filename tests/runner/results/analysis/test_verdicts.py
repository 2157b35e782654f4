"""Levels of several tests."""

import math

import pytest

from timetrial.runner.results.analysis.intervals import LogEstimate, is_equal_within
from timetrial.runner.results.analysis.verdicts import ALONE, Verdict, decide, family_levels, holm_levels


def test_holm_steps_from_the_smallest_p_value():
    """Holm 1979: 0.01 is tested at 0.05 / 4 and 0.015 at 0.05 / 3; 0.03 fails at 0.05 / 2, the level of the rest."""
    levels = holm_levels([0.03, 0.01, math.nan, 0.9, 0.015])
    assert levels == pytest.approx([0.975, 0.9875, 0.95, 0.975, 1 - 0.05 / 3])


def test_equal_is_a_family_too():
    """Of twenty pairs, one that alone is equal within 5% is not shown to be; one with a tighter interval is."""
    close, closer = LogEstimate(0.0, 0.022, 20, 11), LogEstimate(0.0, 0.008, 20, 11)
    assert decide(close) is Verdict.EQUAL
    levels = family_levels([close] * 19 + [closer])
    verdicts = [decide(ratio, levels=level) for ratio, level in zip([close] * 19 + [closer], levels, strict=True)]
    assert verdicts == [Verdict.CANNOT_TELL] * 19 + [Verdict.EQUAL]


def test_two_runs_are_never_decided_nor_tested():
    two, ten = LogEstimate(1.0, 0.001, 2, 2), LogEstimate(1.0, 0.1, 18, 10)
    assert decide(two) is Verdict.CANNOT_TELL
    assert family_levels([two, None, ten])[2] == ALONE


def test_equivalence_p_value_is_the_level_at_which_the_interval_fits():
    ratio = LogEstimate(0.02, 0.012, 8, 5)
    alpha = ratio.equivalence_p_value(0.05)
    assert is_equal_within(ratio, 0.05, alpha * 1.001)
    assert not is_equal_within(ratio, 0.05, alpha * 0.999)
