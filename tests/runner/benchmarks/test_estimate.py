"""Estimates: arithmetic on a measurement that the test makes up, and the command on a tiny run."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from timetrial.runner.benchmarks import estimate
from timetrial.runner.config import schema
from timetrial.runner.core.errors import ConfigurationError

MEASURED = {
    "train_size": 1000, "train_rates": [90.0, 100.0, 110.0], "eval_size": 50, "eval_rates": [10.0, 10.0, 10.0],
    "first_seconds": 3.0,
}  # fmt: skip


def found(compose, *words, recipe="ncf/embedded", changed=(), telemetry=None):
    settings = schema.check(compose(*words))
    status = {"result": MEASURED, "telemetry": telemetry, "peak_memory_bytes": 2**30}
    return estimate.from_measurement(settings, recipe, changed, status)


def test_epochs_times_an_epoch_and_what_the_first_took_more(compose):
    made = found(compose, "usd_per_gpu_hour=3.6", "gpus=2", telemetry={"mean_watts": 50.0})
    assert made.epochs == (6, 6.6, 9)  # of ten seeds, which took 6 to 8
    assert made.seconds[1] == pytest.approx(6.6 * 10 + 6.6 * 5 + 3)
    assert made.seconds[0] == pytest.approx(6 * 1000 / 110 + 6 * 5 + 3)
    assert made.seconds[2] == pytest.approx(9 * 1000 / 90 + 9 * 5 + 3)
    assert made.joules == pytest.approx([50 * value for value in made.seconds])
    assert made.dollars == pytest.approx([2 * 3.6 * value / 3600 for value in made.seconds])
    assert made.reached == 1


def test_evaluations_are_those_of_the_plan(compose):
    made = found(
        compose, "workload=ssd", "recipe.first_eval_epoch=10", "recipe.eval_every_epochs=2", recipe="ssd/embedded"
    )
    assert made.epochs == (16, 20, 24)
    assert made.seconds[1] == pytest.approx(20 * 10 + 6 * 5 + 3)
    assert made.reached is None  # how many were run is not told


def test_a_recipe_that_nobody_has_run_says_so(compose):
    made = found(compose, "recipe.max_epochs=20", recipe="ncf/other")
    assert (made.epochs[0], made.epochs[2]) == (1, 20)
    assert "no reference run" in made.basis
    assert "recipe.global_batch_size differs" in found(compose, changed=["recipe.global_batch_size"]).basis


def test_the_command_measures_and_estimates(tmp_path):
    tiny = ["recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}", "recipe.data.eval_negatives=99"]
    places = [f"runs={tmp_path}/runs", f"data_dir={tmp_path}/data", "accelerator=cpu", "launcher=inline"]
    out = io.StringIO()
    made = estimate.run([*places, *tiny, "throughput.steps=5", "recipe.global_batch_size=2048"], Console(file=out))
    assert 0 < made.seconds[0] < made.seconds[1] < made.seconds[2]
    assert "time-to-train" in out.getvalue()
    assert "recipe.global_batch_size differs" in " ".join(out.getvalue().split())


def test_an_estimate_is_of_one_run():
    with pytest.raises(ConfigurationError, match="-m is no option of estimate"):
        estimate.run(["-m", "seed=1,2"], Console(quiet=True))


def test_the_interval_leaves_out_a_fortieth_at_each_end(compose, monkeypatch):
    known = SimpleNamespace(epochs=(1, *[10] * 78, 30), runs=80, is_range=False, source="")
    plan = estimate.plan_of(schema.check(compose("recipe.max_epochs=40")))
    assert estimate._epochs(plan, known)[::2] == (10, 10)


def test_epochs_are_those_after_which_is_evaluated(compose):
    plan = estimate.plan_of(
        schema.check(compose("recipe.first_eval_epoch=4", "recipe.eval_every_epochs=4", "recipe.max_epochs=40"))
    )
    known = SimpleNamespace(epochs=(5, 5, 5), runs=3, is_range=False, source="")
    assert estimate._epochs(plan, known) == (8, 8, 8)


@pytest.mark.parametrize("words", [["recipe.max_epochs=3"], ["recipe.eval_every_epochs=10"]])
def test_what_is_expected_lies_within_its_interval(compose, words):
    made = found(compose, *words)
    assert made.epochs[0] <= made.epochs[1] <= made.epochs[2]
    assert made.seconds[0] <= made.seconds[1] <= made.seconds[2]


def test_training_and_evaluation_draw_what_each_does(compose):
    made = found(compose, telemetry={"mean_watts": 500.0, "train_watts": 700.0, "eval_watts": 300.0})
    assert made.joules[1] == pytest.approx(700 * (6.6 * 10 + 3) + 300 * 6.6 * 5)


@pytest.mark.parametrize(
    ("epochs", "runs", "span", "ends"),
    [
        ((6, 6, 6, 6, 6, 7, 7, 7, 7, 8), 10, False, (5.142, 8.387)),  # by hand: 2.262 x 0.1031 x sqrt(1.1)
        ((7, 8), 5, True, (6.302, 8.887)),  # 2.776 x 0.1335 / 2.361 x sqrt(1.2)
        ((5, 5, 5), 3, False, (5, 5)),
        ((12,), 1, False, (12, 12)),
        ((7, 8), None, True, (7, 8)),
        ((1, *[10] * 78, 30), 80, False, (10, 10)),
    ],
)
def test_the_next_run_is_expected_further_out_the_fewer_there_were(epochs, runs, span, ends):
    assert estimate._next(epochs, runs, span) == pytest.approx(ends, rel=1e-3)


def test_the_interval_holds_nineteen_of_twenty_next_runs():
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        runs = np.exp(draw.normal(3, 0.2, 6))
        low, high = estimate._next(sorted(runs[:5]), 5, False)
        held += low <= runs[5] <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)
