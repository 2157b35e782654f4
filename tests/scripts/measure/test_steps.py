"""The measurement of steps, on the CPU, where nothing is captured."""

import importlib.util
import json
import subprocess
import sys

import pytest

from timetrial.runner.training.distributed import World
from timetrial.runner.training.torch_engine import TorchEngine

RATINGS = "recipe.data.generate={num_users: 60, num_items: 200, num_ratings: 1800, num_clusters: 3}"
OVERRIDES = ["accelerator=cpu", "seed=1", RATINGS, "recipe.data.eval_negatives=50"]


@pytest.fixture
def measure(root, tmp_path):
    def run(*options):
        overrides = [*OVERRIDES, f"data_dir={tmp_path}"]
        command = [sys.executable, "-P", str(root / "scripts/measure/steps.py"), "--steps", "3", *options, *overrides]
        return json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)

    return run


@pytest.mark.integration
def test_times_of_steps_and_evaluations_are_printed(measure):
    result = measure()
    assert result["step_ms"] > 0
    assert len(result["evaluation_s"]) == 5


@pytest.mark.integration
def test_losses_of_equal_seeds_are_compared(measure):
    result = measure("--losses")
    assert len(result["losses"]) == 3
    assert result["losses"] == result["eager_losses"]
    assert (result["loss_difference"], result["repeat_difference"]) == (0, 0)


@pytest.mark.integration
def test_losses_of_one_run_are_printed_for_a_comparison_of_versions(measure):
    result = measure("--losses", "--once")
    assert result["losses"] == measure("--losses")["losses"]
    assert "eager_losses" not in result


@pytest.mark.integration
def test_evaluation_can_be_omitted(measure):
    assert "evaluation_s" not in measure("--no-evaluation")


@pytest.mark.integration
def test_repeated_steps_have_the_batches_of_those_before(root, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("measure_steps", root / "scripts/measure/steps.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    step, batches = TorchEngine._step, []
    monkeypatch.setattr(TorchEngine, "_step", lambda engine, batch: (batches.append(batch), step(engine, batch))[1])
    script.measure([*OVERRIDES, f"data_dir={tmp_path}"], World(), 3, eager=True, repeat=True, longest=1, evaluate=False)
    warm_up, timed = batches[-6:-3], batches[-3:]
    assert all(one is other for one, other in zip(warm_up, timed, strict=True))
    assert len({id(batch) for batch in timed}) == 3


@pytest.mark.integration
def test_ways_to_exchange_gradients_are_compared(measure):
    result = measure("--exchange", "gpus=2")
    assert set(result["step_ms"]) >= {"as configured", "buckets of 100 MiB", "after the backward pass", "none"}
    assert {len(rounds) for rounds in result["step_ms"].values()} == {3}
    assert min(min(rounds) for rounds in result["step_ms"].values()) > 0
