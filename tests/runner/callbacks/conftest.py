"""Runs whose output can be read, runs that are stopped and resumed, and the curves of a run record."""

import io
import sys

import pytest
from rich.console import Console

from timetrial.runner.callbacks import tracker
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.run import launch as launch_run


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Wait for a tracker as long as a busy machine needs."""
    monkeypatch.setattr(tracker, "_PATIENCE_SECONDS", 600.0)


@pytest.fixture(autouse=True)
def _wandb_reads_its_variables_again():
    """Let W&B forget the environment variables of this test, which it reads once a process."""
    yield
    if module := sys.modules.get("wandb"):
        module.teardown()


@pytest.fixture
def launch_aloud(compose, tiny_ncf, tmp_path):
    """Run a tiny run to its target: launch_aloud(*overrides) -> (exit code, run directory, output)."""

    def run(*overrides):
        tiny = [*tiny_ncf, "recipe.global_batch_size=2048", "recipe.target.v05.hit_rate=0.2", "launcher=inline"]
        output = io.StringIO()
        folders = [f"runs_dir={tmp_path}/runs", f"data_dir={tmp_path}/data"]
        result = launch_run(compose(*tiny, *folders, *overrides), Console(file=output, width=1000))
        return result.exit_code, result.run_dir, output.getvalue()

    return run


@pytest.fixture
def stop_and_resume(launch, tmp_path):
    """Stop a run before its first epoch and resume it to its end: stop_and_resume(override) -> run directory."""

    def run(override):
        overrides = [f"run_dir={tmp_path}/run", override, "recipe.max_epochs=4", "recipe.target.v05.hit_rate=0.999"]
        assert launch(*overrides, "time_limit_seconds=1e-9")[0] == Exit.TIME_LIMIT
        code, run_dir = launch(*overrides, "resume=true")
        assert code == Exit.TARGET_NOT_REACHED
        return run_dir

    return run


@pytest.fixture
def recorded_curves():
    """Return the points (epoch, value) that the run record has for each curve."""

    def curves(training):
        blocks = training.blocks
        assert len(blocks) == 4
        return {
            "train/loss": [(block.last_epoch, block.loss) for block in blocks],
            "train/samples_per_second": [
                (block.last_epoch, pytest.approx(block.samples / block.train_seconds)) for block in blocks
            ],
            "quality/hit_rate": [(block.last_epoch, block.quality["hit_rate"]) for block in blocks],
            "evaluation/seconds": [(block.last_epoch, pytest.approx(block.eval_seconds)) for block in blocks],
        }

    return curves
