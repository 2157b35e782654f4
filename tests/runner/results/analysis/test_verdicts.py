"""Levels of several tests."""

import math

import pytest

from timetrial.runner.results.analysis.verdicts import holm_levels


def test_holm_steps_from_the_smallest_p_value():
    """Holm 1979: 0.01 is tested at 0.05 / 4 and 0.015 at 0.05 / 3; 0.03 fails at 0.05 / 2, the level of the rest."""
    levels = holm_levels([0.03, 0.01, math.nan, 0.9, 0.015])
    assert levels == pytest.approx([0.975, 0.9875, 0.95, 0.975, 1 - 0.05 / 3])
