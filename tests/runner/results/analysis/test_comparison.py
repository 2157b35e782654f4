"""Verdicts on sets whose truth is known because the test made them."""

import math

import pytest

from timetrial.runner.results.analysis import comparison
from timetrial.runner.results.analysis.groups import cells_of
from timetrial.runner.results.parse import sources


def pair(tree):
    cells = {cell.system: cell for cell in cells_of(sources.gather([tree]))}
    return comparison.compare(cells["a"], cells["b"])


def test_the_same_recipe_pools_epochs_and_the_card_decides(published):
    published("a", [4, 5, 4, 5, 4], 60.0)
    found = pair(published("b", [5, 4, 5, 4, 5], 30.0))
    assert found.banner == ""
    assert found.expected.estimate == pytest.approx(2.0, rel=0.01)
    assert found.expected.high - found.expected.low < 0.01 < found.time.high - found.time.low
    assert "2 times slower to the target, with epochs pooled" in found.verdict
    assert found.time.estimate == pytest.approx(found.epochs.estimate * found.per_epoch.estimate, rel=0.02)


def test_another_recipe_with_other_epochs_raises_the_banner(published):
    published("a", [12, 12, 13, 12, 12], 60.0)
    found = pair(published("b", [4, 4, 5, 4, 4], 60.0, batch=4096))
    assert found.banner.startswith("These two cannot be compared by time-to-train: they needed 12.2 epochs against 4.2")
    assert "no difference by time per epoch at 95%" in found.verdict
    assert "global batch: 2048 samples against 4096 samples" in found.differences
    assert found.expected is None


def test_another_recipe_with_noisy_epochs_raises_the_banner(published):
    published("a", [4, 5, 6, 5, 4], 60.0)
    found = pair(published("b", [5, 4, 5, 6, 4], 60.0, rate=0.003))
    assert "the epochs vary by 17% from run to run" in found.banner
    assert "opt_base_learning_rate: 0.002 against 0.003" in found.differences


def test_another_recipe_with_steady_equal_epochs_compares(published):
    published("a", [4] * 5, 60.0)
    found = pair(published("b", [4] * 5, 50.0, rate=0.003))
    assert found.banner == ""
    assert "1.2 times slower to the target" in found.verdict


def test_single_runs_carry_no_interval(published):
    published("a", [4], 60.0)
    found = pair(published("b", [4], 50.0))
    assert math.isnan(found.time.low)
    assert "single runs carry none" in found.verdict


def test_different_work_is_not_compared(published, log):
    tree = published("a", [4] * 3, 60.0)
    log("tree/v1.1/Maker/b/ssd/result_0.txt", benchmark="ssd")("run_start").evaluate(4, 0.24).stop().write()
    found = pair(tree)
    assert found.banner == "These two cannot be compared at all: gnmt and ssd are different models."


def test_no_converged_run_is_said(published):
    published("a", [4] * 3, 60.0)
    found = pair(published("b", [], 60.0, failed=3))
    assert "Maker b (gnmt v0.7) has no run that reached its target" in found.banner
