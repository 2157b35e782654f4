"""The sentences of the first screen of a comparison."""

import pytest

from timetrial.runner.results.analysis.comparison import Machines
from timetrial.runner.results.report.comparison_panel import _describe_machines


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([Machines.ONE, Machines.ONE], "Both sides ran on one machine: differences hold there."),
        ([Machines.ONE, Machines.TWO], "One machine a side: differences hold between these machines."),
        ([Machines.TWO, Machines.GIVEN], "Differences hold between these machines."),
        ([Machines.TWO], "In 1 cell, differences hold between these machines."),
    ],
)
def test_machines_of_the_differences_are_named(given, sentence):
    assert _describe_machines(given, 2) == sentence
