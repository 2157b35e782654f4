"""Comparison of synthetic run groups with known differences."""

import math

import pytest

from timetrial.runner.results.analysis import comparison as comparison_module
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources


def compare(tree):
    groups = {group.system: group for group in group_runs(sources.read_runs([tree]))}
    return comparison_module.compare(groups["a"], groups["b"])


def test_same_recipe_pools_epochs(published):
    published("a", [4, 5, 4, 5, 4], 60.0)
    comparison = compare(published("b", [5, 4, 5, 4, 5], 30.0))
    assert comparison.banner == ""
    assert comparison.pooled_time_to_train.estimate == pytest.approx(2.0, rel=0.01)
    assert (
        comparison.pooled_time_to_train.high - comparison.pooled_time_to_train.low
        < 0.01
        < comparison.time_to_train.high - comparison.time_to_train.low
    )
    assert "2 times slower by time-to-train with pooled epochs" in comparison.verdict
    assert comparison.time_to_train.estimate == pytest.approx(
        comparison.epochs.estimate * comparison.time_per_epoch.estimate, rel=0.02
    )


def test_different_recipe_with_different_epochs_is_not_comparable(published):
    published("a", [12, 12, 13, 12, 12], 60.0)
    comparison = compare(published("b", [4, 4, 5, 4, 4], 60.0, batch=4096))
    assert comparison.banner.startswith(
        "These groups cannot be compared by time-to-train: they converged in 12.2 vs. 4.2 epochs"
    )
    assert "no significant difference by time per epoch (ratio" in comparison.verdict
    assert "global batch size: 2048 samples vs. 4096 samples" in comparison.differences
    assert comparison.pooled_time_to_train is None


def test_different_recipe_with_noisy_epochs_is_not_comparable(published):
    published("a", [4, 5, 6, 5, 4], 60.0)
    comparison = compare(published("b", [5, 4, 5, 6, 4], 60.0, rate=0.003))
    assert "their epochs vary by 17% from run to run" in comparison.banner
    assert "opt_base_learning_rate: 0.002 vs. 0.003" in comparison.differences


def test_different_recipe_with_equal_epochs_is_comparable(published):
    published("a", [4] * 5, 60.0)
    comparison = compare(published("b", [4] * 5, 50.0, rate=0.003))
    assert comparison.banner == ""
    assert "1.2 times slower by time-to-train" in comparison.verdict


def test_single_runs_have_no_confidence_interval(published):
    published("a", [4], 60.0)
    comparison = compare(published("b", [4], 50.0))
    assert math.isnan(comparison.time_to_train.low)
    assert "without a confidence interval (single runs)" in comparison.verdict


def test_different_models_are_not_comparable(published, log):
    tree = published("a", [4] * 3, 60.0)
    log("tree/v1.1/Maker/b/ssd/result_0.txt", benchmark="ssd")("run_start").evaluate(4, 0.24).stop().write()
    comparison = compare(tree)
    assert comparison.banner == "These groups cannot be compared: gnmt and ssd are different models."


def test_group_without_converged_run_is_not_comparable(published):
    published("a", [4] * 3, 60.0)
    comparison = compare(published("b", [], 60.0, failed=3))
    assert "Maker b (gnmt v0.7) has no run that reached its target" in comparison.banner
