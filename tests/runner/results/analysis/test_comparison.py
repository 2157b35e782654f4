"""Verdicts on synthetic run groups whose truth is known; the cases of the command line are those that users meet."""

import math

import numpy as np
import pytest

from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis import comparison as comparison_module
from timetrial.runner.results.analysis.comparison import Basis, EpochsState, Machines
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.analysis.verdicts import Verdict
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report import comparison_json, comparison_text

LUCKY = [10, 9, 10, 11, 10, 10, 9, 11, 10, 10]
UNLUCKY = [13, 12, 13, 14, 13, 13, 12, 14, 13, 13]


def read_groups(tree):
    return {group.system: group for group in group_runs(sources.read_runs([tree]))}


def compare(tree, margin=0.05):
    groups = read_groups(tree)
    return comparison_module.compare(groups["a"], groups["b"], margin)


def test_measured_time_decides_even_where_epochs_are_shown_equal(published):
    published("a", [30, 31, 30, 29, 30], 60.0)
    comparison = compare(published("b", [30, 30, 31, 29, 30], 30.0))
    assert comparison.verdict == Verdict.FASTER
    assert comparison.epochs_state is EpochsState.SHOWN_EQUAL
    assert comparison_text.epochs_state(comparison) == "shown equal within 5%"
    assert comparison.time.estimate == pytest.approx(comparison.time_to_train.estimate)
    assert comparison.time.estimate == pytest.approx(2.0, rel=1e-3)
    assert comparison_text.phrase(comparison).startswith("1.999 times faster (95% CI: ")
    assert comparison_text.phrase(comparison).endswith(" by time-to-train, between these two machines")
    assert comparison.time_to_train.estimate == pytest.approx(
        comparison.epochs.estimate * comparison.seconds_per_epoch.estimate
    )
    assert comparison_text.reasons(comparison) == []


def test_margin_is_not_spent_twice(published):
    """4% more epochs and 4% more time each are 8.2% together, which is not equal within 5%."""
    published("a", [100, 101, 99, 100, 100, 100, 99, 101], 60.0)
    comparison = compare(published("b", [104, 105, 103, 104, 104, 104, 103, 105], 60.0 * 1.04))
    assert comparison.epochs_state is EpochsState.SHOWN_EQUAL
    assert comparison.verdict == Verdict.SLOWER
    assert comparison.time.low < 1 / 1.04**2 < comparison.time.high


def test_more_epochs_of_one_recipe_count_as_measured(published):
    """13 epochs against 10: 1.2 times faster per epoch is slower to the target."""
    published("a", LUCKY, 60.0)
    comparison = compare(published("b", UNLUCKY, 50.0))
    assert comparison.verdict == Verdict.SLOWER
    assert comparison.time.estimate == pytest.approx(10 / 13 * 1.2, rel=0.01)
    assert comparison.seconds_per_epoch.estimate == pytest.approx(1.2, rel=0.01)
    assert comparison_text.reasons(comparison)[0] == "their epochs are not shown equal within 5% (9.98 vs. 13 epochs)"


def test_other_recipe_with_other_epochs_is_not_comparable(published):
    """5 5 5 against 8 8 8, at three runs a side."""
    published("a", [5, 5, 5], 60.0)
    comparison = compare(published("b", [8, 8, 8], 60.0, rate=0.004))
    assert comparison.verdict == Verdict.NOT_COMPARABLE
    assert (
        "their recipes differ (opt_base_learning_rate) and their epochs are not shown equal (5 vs. 8 epochs)"
        in (comparison_text.reasons(comparison)[0])
    )
    assert comparison_json.to_json(comparison)["ratio"] is None
    assert comparison_json.to_json(comparison)["seconds_per_epoch"]["ratio"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("setting", [{"gpus": 4}, {"batch": 4096}, {"rate": 0.003}])
@pytest.mark.parametrize(
    ("epochs", "verdict"), [((LUCKY, UNLUCKY), Verdict.NOT_COMPARABLE), (([30] * 5, [30] * 5), Verdict.FASTER)]
)
def test_recipe_differences_must_be_shown_harmless(published, setting, epochs, verdict):
    published("a", epochs[0], 60.0)
    assert compare(published("b", epochs[1], 40.0, **setting)).verdict == verdict


@pytest.mark.parametrize("name", ["precision", "software"])
def test_precision_and_software_are_recipe_differences(published, name):
    """bf16 that needs 30% more epochs is not called faster, at no number of runs."""
    published("a", LUCKY, 60.0)
    groups = read_groups(published("b", UNLUCKY, 40.0))
    for run in (*groups["a"].runs, *groups["b"].runs):
        run.run_record = RunRecord()
    for run in groups["b"].runs:
        setattr(run, name, "bf16")
    comparison = comparison_module.compare(groups["a"], groups["b"])
    assert comparison.verdict == Verdict.NOT_COMPARABLE
    assert f"their recipes differ ({name})" in comparison_text.reasons(comparison)[0]


def test_free_text_of_a_submitter_is_no_recipe_difference(published):
    """The framework in systems files is said, and published logs stay comparable."""
    published("a", LUCKY, 60.0)
    groups = read_groups(published("b", LUCKY, 40.0))
    for run in groups["b"].runs:
        run.software = "PyTorch, our own release"
    comparison = comparison_module.compare(groups["a"], groups["b"])
    assert comparison.verdict == Verdict.FASTER
    assert "software: PyTorch vs. PyTorch, our own release" in comparison_text.differences(comparison)


def test_failed_runs_decide(published):
    """4 of 8 failed: the converged runs alone are faster."""
    published("a", [5] * 8, 60.0)
    comparison = compare(published("b", [4] * 4, 60.0, failed=4))
    assert comparison.basis is Basis.EXPECTED_TIME
    assert comparison.verdict in (Verdict.SLOWER, Verdict.CANNOT_TELL)
    assert comparison.time.estimate == pytest.approx(5 / (4 + 8), rel=0.01)
    assert "4 of 8 runs of Maker b (gnmt v0.7) failed" in comparison_text.reasons(comparison)
    assert comparison_json.to_json(comparison)["failures"] == {"baseline": 0, "other": 4}


def test_group_without_success_gets_a_bound(published):
    published("a", [4] * 3, 60.0)
    comparison = compare(published("b", [], 60.0, failed=3))
    assert comparison.verdict == Verdict.CANNOT_TELL
    assert comparison_text.reasons(comparison)[0].startswith(
        "no run of Maker b (gnmt v0.7) reached its target: it takes > 8"
    )


def test_equal_epochs_are_no_certainty(published):
    """4 4 4 on both sides: the grid of evaluations leaves 1.25 uncertain."""
    published("a", [4] * 3, 60.0)
    comparison = compare(published("b", [4] * 3, 48.0))
    assert comparison.time.estimate == pytest.approx(1.25, rel=1e-3)
    assert comparison.time.low < 1.1 < 1.4 < comparison.time.high


def test_single_runs_cannot_tell(published):
    """A busy host once made a GPU 2.38 times faster."""
    published("a", [4], 60.0)
    comparison = compare(published("b", [4], 25.2))
    assert comparison.verdict == Verdict.CANNOT_TELL
    assert comparison_text.phrase(comparison) == "cannot tell which is faster, between these two machines"
    assert "fewer than three converged runs" in comparison_text.reasons(comparison)[0]
    assert comparison_json.to_json(comparison)["low"] is None


@pytest.mark.parametrize("pace", [60.0, 20.0])
def test_two_runs_a_side_get_no_verdict(published, pace):
    """Neither equal nor faster; the interval is shown."""
    published("a", [30] * 2, 60.0)
    comparison = compare(published("b", [30] * 2, pace))
    assert comparison.verdict == Verdict.CANNOT_TELL
    assert comparison.time.is_bounded
    assert "fewer than three converged runs" in comparison_text.reasons(comparison)[0]


def test_equal_within_the_margin(published):
    published("a", [30] * 6, 60.0)
    tree = published("b", [30] * 6, 59.9)
    assert compare(tree).verdict == Verdict.EQUAL
    assert "equal within 5% by time-to-train" in comparison_text.phrase(compare(tree))
    assert compare(tree, margin=0.02).verdict != Verdict.EQUAL or "within 2%" in comparison_text.phrase(
        compare(tree, margin=0.02)
    )


def test_copies_of_a_run_count_once(published):
    tree = published("a", [4], 60.0)
    log = next(tree.glob("**/a/gnmt/result_0.txt"))
    for number in range(1, 5):
        log.with_name(f"result_{number}.txt").write_text(log.read_text())
    published("b", [4, 5, 4], 60.0)
    comparison = compare(tree)
    assert comparison.verdict == Verdict.CANNOT_TELL
    assert any(
        "5 runs repeat each other's seeds and count as 1 independent run" in text
        for text in comparison_text.reasons(comparison)
    )


def test_machines_are_the_observations_where_there_are_several(published):
    """Four runs on each of two machines a side say as much about GPUs as two observations."""
    published("a", [30] * 8, 60.0)
    groups = read_groups(published("b", [30] * 8, 57.0))
    for group in groups.values():
        for index, run in enumerate(group.runs):
            run.host, run.gpu_ids = f"{group.system}{index % 2}", frozenset({f"{group.system}{index % 2}"})
            run.duration *= 1.05 if index % 2 else 1.0
    comparison = comparison_module.compare(groups["a"], groups["b"])
    assert comparison.machines is Machines.SAMPLED
    assert comparison.ratio.dof == pytest.approx(2)
    assert comparison.verdict == Verdict.CANNOT_TELL


@pytest.mark.parametrize("seeds", ["shared", "own"])
def test_seeds_shared_by_machines_are_observations_too(published, seeds):
    """Four seeds on each of three machines a side, which are equally fast: the luck of the seeds remains."""
    published("a", [30] * 12, 60.0)
    groups = read_groups(published("b", [30] * 12, 60.0))
    luck = [1.0, 1.06, 0.95, 1.02]
    for group in groups.values():
        for index, run in enumerate(group.runs):
            machine, seed = divmod(index, 4)
            run.host, run.gpu_ids = f"{group.system}{machine}", frozenset({f"{group.system}{machine}"})
            run.run_record, run.seed = RunRecord(), seed if seeds == "shared" else index
            run.duration = 1000.0 * luck[seed] * (1.1 if group.system == "a" else 1.0) * (1 + machine / 1000)
    comparison = comparison_module.compare(groups["a"], groups["b"])
    assert comparison.machines is Machines.SAMPLED
    assert comparison.time.estimate == pytest.approx(1.1)
    error_of_machines = math.sqrt(2 * np.var(np.log([1.0, 1.001, 1.002]), ddof=1) / 3)
    if seeds == "own":
        # Machines that agree by chance are no less uncertain than their runs.
        times = [[math.log(run.duration) for run in group.runs] for group in groups.values()]
        assert comparison.ratio.error == pytest.approx(math.sqrt(sum(np.var(side, ddof=1) / 12 for side in times)))
    else:
        error_of_seeds = math.sqrt(2 * np.var(np.log(luck), ddof=1) / 4)
        assert comparison.ratio.error == pytest.approx(math.hypot(error_of_machines, error_of_seeds), rel=0.01)


@pytest.mark.parametrize(
    ("hosts", "gpus", "machines"),
    [
        ({"a": "node1", "b": "node1"}, {"a": "", "b": ""}, Machines.ONE),
        ({"a": "node1", "b": "node2"}, {"a": "", "b": ""}, Machines.TWO),
        ({"a": "node1", "b": "node2"}, {"a": "1", "b": "1"}, Machines.ONE),
        ({"a": "node1", "b": "node2"}, {"a": "1", "b": "2"}, Machines.TWO),
        ({"a": "node1", "b": "pod"}, {"a": "1", "b": ""}, Machines.TWO),
    ],
)
def test_machines_of_a_comparison_are_named(published, hosts, gpus, machines):
    published("a", [30] * 3, 60.0)
    groups = read_groups(published("b", [30] * 3, 57.0))
    for side, group in groups.items():
        for run in group.runs:
            run.host, run.gpu_ids = hosts[side], frozenset(gpus[side])
    assert comparison_module.compare(groups["a"], groups["b"]).machines is machines


@pytest.mark.parametrize(
    ("are_gpus_known", "machines"), [(True, Machines.GIVEN), (False, Machines.TWO)], ids=["known", "unknown"]
)
def test_host_names_alone_are_no_machines(published, are_gpus_known, machines):
    """A container has a new host name in each run: its runs are no sample of machines."""
    published("a", [30] * 4, 60.0)
    groups = read_groups(published("b", [30] * 4, 57.0))
    for side, group in groups.items():
        for index, run in enumerate(group.runs):
            run.host = f"pod-{side}{index}"
            run.gpu_ids = frozenset({f"{side}{index if side == 'b' else 0}"} if are_gpus_known else ())
    comparison = comparison_module.compare(groups["a"], groups["b"])
    assert comparison.machines is machines
    assert comparison_text.phrase(comparison).endswith(machines.value)


def test_equal_seeds_give_correlation_and_paired_interval(published):
    epochs = [8, 12, 9, 15, 10, 11]
    published("a", epochs, 60.0)
    comparison = compare(published("b", epochs, 50.0))
    assert comparison.correlation.estimate > 0.99
    assert comparison.paired.estimate == pytest.approx(comparison.time_to_train.estimate)
    assert comparison.paired.high - comparison.paired.low < comparison.time_to_train.high - comparison.time_to_train.low


def test_many_comparisons_are_tested_together(published):
    """A difference that one comparison shows is not shown among twelve."""
    published("a", LUCKY, 60.0)
    for number in range(12):
        tree = published(f"b{number}", [9, 9, 10, 10, 9, 9, 9, 10, 10, 9], 60.0)
    groups = read_groups(tree)
    alone = comparison_module.compare(groups["a"], groups["b0"])
    together = comparison_module.compare_all([(groups["a"], groups[f"b{number}"]) for number in range(12)])
    assert alone.verdict == Verdict.FASTER
    assert {pair.verdict for pair in together} == {Verdict.CANNOT_TELL}
    assert together[0].levels.difference == pytest.approx(1 - 0.05 / 12)


def test_different_models_and_scales_are_not_comparable(published, log):
    tree = published("a", [4] * 3, 60.0)
    log("tree/v1.1/Maker/b/ssd/result_0.txt", benchmark="ssd")("run_start").evaluate(4, 0.24).stop().write()
    comparison = compare(tree)
    assert comparison_text.reasons(comparison)[0] == "gnmt and ssd are different models"
    assert comparison.verdict == Verdict.NOT_COMPARABLE
