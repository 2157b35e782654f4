"""Fixtures of all tests, and the guard against the `datasets` trap: the checkout is never on the import path."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# `python -m pytest` puts the working folder on the path: `import datasets` would find ours, not Hugging Face's.
sys.path[:] = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() != ROOT]


@pytest.fixture
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture
def compose():
    """Composes a configuration as `timetrial run` does: compose("workload=ncf", ...) -> DictConfig."""
    from timetrial.runner.config.compose import compose

    def composed(*overrides):
        accelerator = [] if any(word.startswith("accelerator=") for word in overrides) else ["accelerator=cpu"]
        return compose([*accelerator, *overrides]).node

    return composed


@pytest.fixture
def launch(compose, tmp_path):
    """Runs a composed configuration in this process on tiny data: launch(*overrides) -> (exit code, run folder)."""
    from rich.console import Console

    from timetrial.runner.launch.run import launch

    places = [f"runs_dir={tmp_path}/runs", f"data_dir={tmp_path}/data", "launcher=inline"]
    tiny = ["recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}", "recipe.data.eval_negatives=99"]
    tiny += ["recipe.global_batch_size=2048", "recipe.max_epochs=2", "recipe.target.v05.hit_rate=0.2"]

    def run(*overrides):
        result = launch(compose(*places, *tiny, *overrides), Console(quiet=True))
        return result.exit_code, result.run_dir

    return run


@pytest.fixture
def interpret():
    """Runs a program with Triton's kernels interpreted, in a process of its own: Triton decides at import."""
    import subprocess

    pytest.importorskip("triton")

    def run(program, *words):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, *words],
            env=os.environ | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr

    return run
