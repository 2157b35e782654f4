"""Numbers as people read them."""

import pytest

from timetrial.runner.core.formatting import format_energy, format_number


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (0.0, "0"), (1.2345, "1.23"), (99.96, "100"), (100.4, "100"), (12345.6, "12,346")]
)
def test_number_has_three_significant_digits_below_a_hundred(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(("joules", "text"), [(999, "999 J"), (2e5, "200 kJ"), (7.2e5, "0.2 kWh"), (3.6e7, "10 kWh")])
def test_energy_is_written_in_a_readable_unit(joules, text):
    assert format_energy(joules) == text
