"""Grouping of runs, and the scores of groups."""

from pathlib import Path

import numpy as np
import pytest

from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis import findings
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse.runs import Run


def runs(seconds, converged, **fields):
    fields = {"round": "v0.7", "benchmark": "gnmt", "submitter": "m", "system": "s"} | fields
    return [
        Run(
            Path(f"result_{n}.txt"), Path("none"), **fields, started=float(n), duration=second, observed=second,
            success=reached, progress_to_converge=4 if reached else None,
        )
        for n, (second, reached) in enumerate(zip(seconds, converged, strict=True))
    ]  # fmt: skip


def test_ncf_v05_score_uses_first_fifty_converged():
    generator = np.random.default_rng(1)
    seconds, converged = generator.uniform(60, 120, 100), generator.random(100) < 0.8
    (group,) = group_runs(runs(seconds, converged, benchmark="ncf", round="v0.5"))
    fifty = np.sort(seconds[np.flatnonzero(converged)[:50]])
    assert group.minutes_olympic == pytest.approx(fifty[1:-1].mean() / 60)
    assert group.num_failed == 0
    assert sum(run.success for run in group.runs) == converged.sum()


def test_ncf_with_fewer_than_fifty_runs_uses_olympic_mean():
    (group,) = group_runs(runs([60.0, 70.0, 80.0, 90.0], [True, True, True, False], benchmark="ncf", round="v0.5"))
    assert group.minutes_olympic == pytest.approx(75 / 60)
    assert (group.num_failed, group.epochs_olympic) == (1, 4)


def test_median_treats_failed_runs_as_censored():
    (group,) = group_runs(runs([60.0, 120.0, 180.0, 300.0, 300.0], [True, True, True, False, False]))
    assert group.minutes_olympic is None
    assert group.survival.median == 3
    assert group.mean_minutes.n == 3


def test_different_settings_are_different_groups():
    first = runs([60.0], [True], run_record=RunRecord(), scale="mini", precision="bf16")
    second = runs([60.0], [True], run_record=RunRecord(), scale="mini", precision="fp32")
    assert len(group_runs(first + second)) == 2


def test_own_runs_are_grouped_by_recipe_engine_and_target():
    """The batch size, GPU and precision are the same; recipe, engine or target differ."""
    common = {"run_record": RunRecord(), "scale": "mini", "precision": "bf16", "global_batch_size": 32}
    settings = [
        {"hyperparameters": {"sgd_opt_learning_rate_decay_steps": 5}, "execution": {"timetrial_engine": "torch"}},
        {"hyperparameters": {"sgd_opt_learning_rate_decay_steps": 20}, "execution": {"timetrial_engine": "torch"}},
        {"hyperparameters": {"sgd_opt_learning_rate_decay_steps": 5}, "execution": {"timetrial_engine": "tensorflow"}},
    ]
    all_runs = [run for setting in settings for run in runs([60.0, 70.0], [True, True], **common, **setting)]
    assert [len(group.runs) for group in group_runs(all_runs)] == [2, 2, 2]
    assert [group.setting.split("batch 32, ")[1] for group in group_runs(all_runs)] == [
        "engine torch, learning rate decay steps 5",
        "engine torch, learning rate decay steps 20",
        "engine tensorflow, learning rate decay steps 5",
    ]
    assert [group.setting.endswith("batch 32") for group in group_runs(all_runs[:2])] == [True]
    targets = [run for minimum in (0.7, 0.8) for run in runs([60.0], [True], **common, target={"accuracy": minimum})]
    assert [group.setting.split(", ")[-1] for group in group_runs(targets)] == ["target 0.7", "target 0.8"]


def test_additional_runs_give_median_window():
    minutes = [5.0, 3.0, 2.0, 4.0, 4.5, 1.0, 15.0]
    (group,) = group_runs(runs([60 * value for value in minutes], [True] * 7, benchmark="resnet"))
    windows = [np.mean(sorted(minutes[start : start + 5])[1:-1]) for start in range(3)]
    assert group.median_window == (windows.index(sorted(windows)[1]), pytest.approx(sorted(windows)[1]))


@pytest.mark.parametrize(("half", "flagged"), [(100.5, True), (50.0, False)])
def test_flags_precision_without_effect(half, flagged):
    fields = {"benchmark": "resnet", "run_record": RunRecord(), "train_samples": 1000, "num_accelerators": 1}
    full = runs([100.0] * 3, [True] * 3, precision="fp32", **fields)
    flags = findings.check_precision(group_runs(full + runs([half] * 3, [True] * 3, precision="fp16", **fields)))
    assert [flag.message for flag in flags] == (
        ["fp16 speedup 1.00 over fp32: the precision switch very likely had no effect."] if flagged else []
    )


@pytest.mark.parametrize(("submitter", "origin"), [("unofficial", "host1"), ("NVIDIA", "NVIDIA host1"), ("", "host1")])
def test_title_names_submitter_unless_it_is_the_default(submitter, origin):
    (group,) = group_runs(runs([60], [True], submitter=submitter, system="host1"))
    assert group.title.startswith(f"{origin} (")
