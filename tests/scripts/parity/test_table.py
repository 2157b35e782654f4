"""The statistics of the table, against textbook values."""

import math

import pytest

from timetrial.scripts.parity import curves, table
from timetrial.scripts.parity.curves import Curve

FIRST, SECOND = [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]


def curve(side, seed, *qualities, overrides=()):
    epochs = tuple(range(1, len(qualities) + 1))
    return Curve("ncf", side, seed, overrides, "CPU", "2026-01-01", epochs, (1.0,) * len(epochs), qualities)


def test_welch_interval():
    """t(0.975) of 5 / 3 / (4 / 3) * ... degrees: variances 1 and 4, three values each."""
    freedom = (5 / 3) ** 2 / (((1 / 3) ** 2 + (4 / 3) ** 2) / 2)
    assert freedom == pytest.approx(2.941, abs=1e-3)
    estimate = table.difference_of_means(FIRST, SECOND, 0.95)
    assert estimate.value == 2
    assert estimate.high - 2 == pytest.approx(3.217 * math.sqrt(5 / 3), rel=2e-3)
    assert 2 - estimate.low == pytest.approx(estimate.high - 2)


def test_ratio_of_variances_has_the_interval_of_f():
    """F(0.975; 2, 2) is 39."""
    ratio = table.ratio_of_variances(FIRST, SECOND)
    assert ratio == pytest.approx((4.0, 4 / 39, 4 * 39))


def test_verdicts():
    tight = [1.0, 1.001, 0.999, 1.0, 1.0]
    assert table.verdict(tight, tight, 0.05) == "equal"
    assert table.verdict(tight, [value + 1 for value in tight], 0.05) == "different"
    assert table.verdict(FIRST, SECOND, 0.05) == "undecided"


def test_a_row_for_each_side_and_a_verdict_for_each_pair(tmp_path):
    runs = [curve(side, seed, 0.1, 0.5 + seed / 1000) for side in curves.SIDES for seed in (1, 2, 3)]
    runs.append(curve("timetrial", 1, 0.2, overrides=("recipe.max_epochs=1",)))
    path = tmp_path / "curves.jsonl"
    path.write_text("".join(map(curves.write_line, runs)))
    lines = table.format_table(curves.read([path]), margin=0.05).splitlines()
    assert len(lines) == 5
    assert "1: 0.1000 (0.0000), 2: 0.5020 (0.0010) | 0.5020 (0.0010)" in lines[2]
    assert "1.00 (0.03 to 39.00) | equal: +0.0000 (-0.0017 to +0.0017), margin 0.0251" in lines[3]
    assert lines[4].startswith("| ncf `recipe.max_epochs=1` | timetrial | 1 | 1: 0.2000 | 0.2000 |")


def test_seeds():
    assert curves.parse_seeds("1-3,7") == [1, 2, 3, 7]
