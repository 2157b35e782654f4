"""The chart of speeds against a baseline."""

import math

import pytest

from timetrial.runner.results.report.speed_plot import SpeedRow, plot_speeds


@pytest.mark.parametrize("ratio", [1e-320, 1e-9, 1e9, 1e308, math.inf])
def test_ratio_of_damaged_results_is_drawn_at_the_end_of_the_axis(ratio):
    plot = plot_speeds("speeds", "a", [SpeedRow("b", "B", None, [2.0], []), SpeedRow("c", "C", None, [ratio], [])])
    assert "nan" not in plot.svg.lower()
    assert "inf" not in plot.svg.lower()
