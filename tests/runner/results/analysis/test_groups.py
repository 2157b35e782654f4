"""Scores of sets: who counts, and what a failed run does."""

from pathlib import Path

import numpy as np
import pytest

from timetrial.runner.results.analysis import findings
from timetrial.runner.results.analysis.groups import cells_of
from timetrial.runner.results.parse.runs import Run


def runs(seconds, converged, **facts):
    facts = {"round": "v0.7", "benchmark": "gnmt", "submitter": "m", "system": "s"} | facts
    return [
        Run(
            Path(f"result_{n}.txt"), Path("none"), **facts, started=float(n), duration=second, observed=second,
            success=reached, epochs_to_converge=4 if reached else None,
        )
        for n, (second, reached) in enumerate(zip(seconds, converged, strict=True))
    ]  # fmt: skip


def test_ncf_of_v05_counts_the_first_fifty_that_converge():
    generator = np.random.default_rng(1)
    seconds, converged = generator.uniform(60, 120, 100), generator.random(100) < 0.8
    (cell,) = cells_of(runs(seconds, converged, benchmark="ncf", round="v0.5"))
    fifty = np.sort(seconds[np.flatnonzero(converged)[:50]])
    assert cell.minutes_olympic == pytest.approx(fifty[1:-1].mean() / 60)
    assert cell.failed == 0
    assert sum(run.success for run in cell.runs) == converged.sum()


def test_fewer_than_fifty_follow_the_usual_rule():
    (cell,) = cells_of(runs([60.0, 70.0, 80.0, 90.0], [True, True, True, False], benchmark="ncf", round="v0.5"))
    assert cell.minutes_olympic == pytest.approx(75 / 60)
    assert (cell.failed, cell.epochs_olympic) == (1, 4)


def test_the_median_counts_the_failed_as_not_yet_there():
    (cell,) = cells_of(runs([60.0, 120.0, 180.0, 300.0, 300.0], [True, True, True, False, False]))
    assert cell.minutes_olympic is None
    assert cell.survival.median == 3
    assert cell.mean_minutes.n == 3


def test_other_settings_are_other_cells():
    one = runs([60.0], [True], own={"state": "x"}, scale="mini", precision="bf16")
    other = runs([60.0], [True], own={"state": "x"}, scale="mini", precision="fp32")
    assert len(cells_of(one + other)) == 2


def test_our_own_runs_are_one_cell_only_if_made_in_one_way():
    """Of one batch, card and precision: by two recipes, by two engines, to two targets; the seed is luck."""
    alike = {"own": {"state": "x"}, "scale": "mini", "precision": "bf16", "global_batch_size": 32}
    ways = [
        {"hyperparameters": {"sgd_opt_learning_rate_decay_steps": 5}, "stack": {"timetrial_engine": "torch"}},
        {"hyperparameters": {"sgd_opt_learning_rate_decay_steps": 20}, "stack": {"timetrial_engine": "torch"}},
        {"hyperparameters": {"sgd_opt_learning_rate_decay_steps": 5}, "stack": {"timetrial_engine": "tensorflow"}},
    ]
    every = [run for way in ways for run in runs([60.0, 70.0], [True, True], **alike, **way)]
    assert [len(cell.runs) for cell in cells_of(every)] == [2, 2, 2]
    assert [cell.setting.split("batch 32, ")[1] for cell in cells_of(every)] == [
        "engine torch, learning rate decay steps 5",
        "engine torch, learning rate decay steps 20",
        "engine tensorflow, learning rate decay steps 5",
    ]
    assert [cell.setting.endswith("batch 32") for cell in cells_of(every[:2])] == [True]
    targets = [run for least in (0.7, 0.8) for run in runs([60.0], [True], **alike, target={"accuracy": least})]
    assert [cell.setting.split(", ")[-1] for cell in cells_of(targets)] == ["target 0.7", "target 0.8"]


def test_more_runs_than_a_score_needs_give_the_median_window():
    minutes = [5.0, 3.0, 2.0, 4.0, 4.5, 1.0, 15.0]
    (cell,) = cells_of(runs([60 * one for one in minutes], [True] * 7, benchmark="resnet"))
    windows = [np.mean(sorted(minutes[start : start + 5])[1:-1]) for start in range(3)]
    assert cell.window == (windows.index(sorted(windows)[1]), pytest.approx(sorted(windows)[1]))


@pytest.mark.parametrize(("half", "flagged"), [(100.5, True), (50.0, False)])
def test_a_precision_that_changes_nothing_is_flagged(half, flagged):
    facts = {"benchmark": "resnet", "own": {"state": "x"}, "train_samples": 1000, "num_accelerators": 1}
    full = runs([100.0] * 3, [True] * 3, precision="fp32", **facts)
    found = findings.of_cells(cells_of(full + runs([half] * 3, [True] * 3, precision="fp16", **facts)))
    assert [one.sentence for one in found] == (
        ["fp16 speed-up 1.00 over fp32: the precision switch very likely had no effect."] if flagged else []
    )
