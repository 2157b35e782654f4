"""The phases of a schedule, read off its function of the update."""

from types import SimpleNamespace

import pytest

from timetrial.runner.training.schedule_report import find_phases


def phases(function, steps_per_epoch=10, max_epochs=12):
    return find_phases(SimpleNamespace(lr_lambdas=[function]), steps_per_epoch, max_epochs)


def halving(step, remain=60, interval=10, halvings=2):
    if step < 20:
        return (step + 1) / 21
    return 1.0 if step < remain else 0.5 ** min(halvings, (step - remain) // interval + 1)


def test_turning_points_are_in_epochs_of_the_data():
    found = phases(halving)
    assert (found.warm_up_ends, found.decay_begins, found.decay_ends) == (2.0, 6.0, 7.0)
    assert str(found) == (
        "learning rate: warm-up ends at epoch 2, decay begins at epoch 6, ends at epoch 7, of at most 12 epochs"
    )
    assert found.find_problem(["recipe.training.x"]) is None
    assert phases(halving, steps_per_epoch=20).decay_ends == 3.5  # the same updates on more data


def test_schedule_that_ends_before_a_third_of_the_run_is_a_problem():
    problem = phases(halving, steps_per_epoch=20).find_problem(["recipe.training.remain_samples"])
    assert "ends after 3.5 of 12 epochs" in problem
    assert "raise recipe.training.remain_samples, or set recipe.max_epochs=4" in problem
    assert phases(halving, steps_per_epoch=20, max_epochs=10).find_problem([]) is None


def test_warm_up_that_never_ends_is_a_problem():
    rising = phases(lambda step: (step + 1) / 1000)
    problem = rising.find_problem(["recipe.training.warmup_samples"])
    assert "does not end within 12 epochs" in problem
    assert "lower recipe.training.warmup_samples" in problem
    assert rising.find_problem(["recipe.training.remain_epochs", "recipe.training.warmup_samples"]) == problem
    assert str(rising) == "learning rate: still warming up at the end, of at most 12 epochs"


@pytest.mark.parametrize("schedule", [SimpleNamespace(), SimpleNamespace(lr_lambdas=[lambda step: 1.0])])
def test_other_and_constant_schedules_have_no_phases(schedule):
    assert find_phases(schedule, 10, 12) is None


def test_decay_without_end_and_long_runs():
    found = phases(lambda step: min((step + 1) / 50, (50 / (step + 1)) ** 0.5))
    assert (found.warm_up_ends, found.decay_begins, found.decay_ends) == (4.9, 5.0, None)
    long = phases(lambda step: halving(step // 10_000), steps_per_epoch=100_000)
    assert long.warm_up_ends == pytest.approx(2.0, abs=1e-3)
    assert long.decay_ends == pytest.approx(7.0, abs=1e-3)
