"""Estimates: extrapolation from a made-up measurement, and the command on a tiny run."""

import io
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from timetrial.runner.benchmarks import estimate
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.launch.train import training_plan
from timetrial.runner.results.analysis.expectations import find_expectation

MEASURED = SimpleNamespace(
    train_size=1000,
    train_rates=(90.0, 100.0, 110.0),
    eval_size=50,
    eval_rates=(10.0, 10.0, 10.0),
    first_block_extra_seconds=2.0,
    opening_seconds=1.0,
)


def telemetry(mean_watts, train_watts=None, eval_watts=None):
    return SimpleNamespace(
        mean_watts=mean_watts,
        train_watts=train_watts,
        eval_watts=eval_watts,
        energy_source="NVML energy counter",
        host_energy_source=None,
    )


def extrapolate(compose, *overrides, recipe="ncf/embedded", changed_keys=(), telemetry=None):
    config = validate(compose(*overrides))
    record = SimpleNamespace(throughput=MEASURED, telemetry=telemetry, peak_memory_bytes=2**30)
    reference = find_expectation(recipe, config.round.name)
    return estimate.extrapolate(config, recipe, changed_keys, record, reference)


def test_epochs_times_seconds_per_epoch_plus_first_block(compose):
    result = extrapolate(compose, "usd_per_gpu_hour=3.6", "gpus=2", telemetry=telemetry(50.0))
    assert result.epochs == (6, 6.6, 9)  # from ten seeds, which took 6 to 8
    assert result.seconds[1] == pytest.approx(6.6 * 10 + 6.6 * 5 + 3)
    ends = 6 * 1000 / 110 + 6 * 5 + 3, 9 * 1000 / 90 + 9 * 5 + 3
    between_runs = 1.959964 * 0.03  # of the log pace
    widened = [math.hypot(math.log(end / result.seconds[1]), between_runs) for end in ends]
    assert result.seconds[0] == pytest.approx(result.seconds[1] * math.exp(-widened[0]))
    assert result.seconds[2] == pytest.approx(result.seconds[1] * math.exp(widened[1]))
    assert result.joules == pytest.approx([50 * value for value in result.seconds])
    assert result.usd == pytest.approx([2 * 3.6 * value / 3600 for value in result.seconds])
    assert result.reached_fraction == 1


def test_runs_that_need_more_epochs_than_allowed_do_not_reach_the_target(compose):
    result = extrapolate(compose, "recipe.max_epochs=6", changed_keys=["recipe.max_epochs"])
    assert 0 < result.reached_fraction < 1
    assert result.epochs[2] == 6
    estimate.show(Console(file=(out := io.StringIO()), width=200), "", result)
    assert f"{result.reached_fraction:.0%} of those runs reached the target within recipe.max_epochs" in out.getvalue()


def test_time_is_as_uncertain_as_the_pace_of_the_reference_runs(compose):
    config = validate(compose())
    record = SimpleNamespace(throughput=MEASURED, telemetry=None, peak_memory_bytes=None)
    reference = replace(find_expectation("ncf/embedded", "v05"), epochs=(7,) * 39)
    for pace_deviation, words in (
        (0.3, "differ by 30% in pace (as those runs do)"),
        (0.01, "3% in pace (not measured"),
    ):
        known = replace(reference, pace_deviation=pace_deviation)
        result = estimate.extrapolate(config, "ncf/embedded", (), record, known)
        assert result.epochs == (7, 7, 7)
        middle, slowest = 7 * 10 + 7 * 5 + 3, 7 * 1000 / 90 + 7 * 5 + 3
        factor = math.exp(math.hypot(math.log(slowest / middle), 1.959964 * max(pace_deviation, 0.03)))
        assert result.seconds[2] == pytest.approx(middle * factor)
        estimate.show(Console(file=(out := io.StringIO()), width=200), "", result)
        assert words in out.getvalue()


def test_evaluations_follow_the_plan(compose):
    result = extrapolate(
        compose, "workload=ssd", "recipe.first_eval_epoch=10", "recipe.eval_every_epochs=2", recipe="ssd/embedded"
    )
    assert result.epochs == (16, 20, 24)
    assert result.seconds[1] == pytest.approx(20 * 10 + 6 * 5 + 3)
    assert result.reached_fraction is None  # the number of runs is not stated


def test_basis_names_missing_reference_runs_and_changed_keys(compose):
    result = extrapolate(compose, "recipe.max_epochs=20", recipe="ncf/other")
    assert (result.epochs[0], result.epochs[2]) == (1, 20)
    assert "no reference run" in result.basis
    changed = extrapolate(compose, changed_keys=["recipe.global_batch_size"])
    assert "recipe.global_batch_size differs" in changed.basis


@pytest.mark.integration
def test_command_measures_and_estimates(tiny_ncf, tmp_path):
    tiny = [*tiny_ncf, "recipe.global_batch_size=2048", "throughput.steps=5"]
    folders = [f"runs_dir={tmp_path}/runs", f"data_dir={tmp_path}/data", "launcher=inline"]
    out = io.StringIO()
    target = "target.hit_rate=0.3"
    result = estimate.run([*folders, *tiny, target], Console(file=out))
    assert 0 < result.seconds[0] < result.seconds[1] < result.seconds[2]
    assert "time-to-train" in out.getvalue()
    shown = " ".join(out.getvalue().split())
    assert "recipe.global_batch_size" in shown
    assert "target.hit_rate" in shown


def test_rejects_options_of_sweeps():
    with pytest.raises(ConfigurationError, match="-m is no option of timetrial estimate"):
        estimate.run(["-m", "seed=1,2"], Console(quiet=True))


def test_interval_of_many_runs_leaves_out_2_5_percent_at_each_end(compose):
    reference = SimpleNamespace(epochs=(1, *[10] * 78, 30), runs=80, is_range=False, source="")
    plan = training_plan(validate(compose("recipe.max_epochs=40")))
    assert estimate.predict_epochs(plan, reference)[::2] == (10, 10)


def test_epochs_are_rounded_up_to_the_next_evaluation(compose):
    overrides = ["recipe.first_eval_epoch=4", "recipe.eval_every_epochs=4", "recipe.max_epochs=40"]
    plan = training_plan(validate(compose(*overrides)))
    reference = SimpleNamespace(epochs=(5, 5, 5), runs=3, is_range=False, source="")
    assert estimate.predict_epochs(plan, reference) == (4, 8, 8)  # 3.7 to 6.7 epochs


@pytest.mark.parametrize("override", ["recipe.max_epochs=3", "recipe.eval_every_epochs=10"])
def test_middle_lies_within_the_interval(compose, override):
    result = extrapolate(compose, override)
    assert result.epochs[0] <= result.epochs[1] <= result.epochs[2]
    assert result.seconds[0] <= result.seconds[1] <= result.seconds[2]


def test_training_and_evaluation_have_their_own_power(compose):
    result = extrapolate(compose, telemetry=telemetry(500.0, train_watts=700.0, eval_watts=300.0))
    assert result.joules[1] == pytest.approx(700 * (6.6 * 10 + 3) + 300 * 6.6 * 5)


@pytest.mark.parametrize(
    ("epochs", "runs", "is_range", "expected"),
    [
        ((6, 6, 6, 6, 6, 7, 7, 7, 7, 8), 10, False, (5.142, 8.387)),  # by hand: 2.262 x 0.1031 x sqrt(1.1)
        ((7, 8), 5, True, (6.302, 8.887)),  # 2.776 x 0.1335 / 2.361 x sqrt(1.2)
        ((5, 5, 5), 3, False, (3.753, 6.661)),  # 4.303 x 1 / sqrt(12) / 5 x sqrt(1 + 1/3)
        ((12,), 1, False, (12, 12)),
        ((7, 8), None, True, (7, 8)),
        ((1, *[10] * 37, 30), 39, False, (1, 30)),  # covers 38/40
        ((1, *[10] * 76, 30), 78, False, (1, 30)),
        ((1, *[10] * 77, 30), 79, False, (10, 10)),  # covers 76/80
    ],
)
def test_prediction_interval(epochs, runs, is_range, expected):
    assert estimate._prediction_interval(epochs, runs, is_range) == pytest.approx(expected, rel=1e-3)


def test_prediction_interval_covers_95_percent_of_next_runs():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        runs = np.exp(generator.normal(3, 0.2, 6))
        low, high = estimate._prediction_interval(sorted(runs[:5]), 5, False)
        covered += low <= runs[5] <= high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
