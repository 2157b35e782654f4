"""The measured figures in performance.csv."""

from collections import Counter
from dataclasses import replace
from datetime import date

import pytest

from timetrial.runner.record.performance import TRAINING, read_measurements


def test_each_configuration_has_a_quantity_once():
    repeated = [key for key, count in Counter(row.key for row in read_measurements()).items() if count > 1]
    assert not repeated


def test_rows_name_existing_recipes_and_days(root):
    for row in read_measurements():
        assert date.fromisoformat(row.date)
        assert row.commit
        if row.workload:
            assert (root / "conf" / "recipe" / row.workload / f"{row.recipe}.yaml").exists(), row


def test_runs_are_compared_with_training_throughputs_only():
    assert {(row.quantity, row.unit.endswith("s/s")) for row in read_measurements() if row.settings} == {
        (TRAINING, True)
    }


def test_a_figure_is_positive():
    with pytest.raises(ValueError, match="positive"):
        replace(read_measurements()[0], value=0.0)
