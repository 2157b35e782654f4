"""Tiny runs and studies, in processes of their own."""

import subprocess
import sys
import time

import pytest

from timetrial.runner.launch.batch import Study

OVERRIDES = [
    "recipe.global_batch_size=2048",
    "recipe.max_epochs=2",
    "recipe.target.v05.hit_rate=0.999",
    "launcher=inline",
]


@pytest.fixture
def command(tiny_ncf, tmp_path):
    """Return the command of a tiny run: command(*overrides, endless=False)."""

    def make_command(*overrides, endless=False):
        tiny = [*tiny_ncf, "recipe.global_batch_size=512"]
        unreachable = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2000"] if endless else []
        folders = [f"data_dir={tmp_path}/data", f"runs_dir={tmp_path}/runs"]
        return [sys.executable, "-P", "-m", "timetrial", "run", *tiny, *folders, *unreachable, *overrides]

    return make_command


@pytest.fixture
def run_to_end(command, tmp_path):
    """Run a tiny run to its end: run_to_end(*overrides) -> completed process."""

    def run(*overrides):
        return subprocess.run(command(*overrides), capture_output=True, text=True, timeout=300, cwd=tmp_path)

    return run


@pytest.fixture
def start_endless(command, tmp_path):
    """Start an endless run and wait until it has evaluated once: start_endless(run_dir, *overrides) -> process."""

    def start(run_dir, *overrides):
        process = subprocess.Popen(
            command(f"run_dir={run_dir}", *overrides, endless=True),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not (run_dir / "quality.csv").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    return start


@pytest.fixture
def plan_study(tiny_ncf, tmp_path, monkeypatch):
    """Plan a study of tiny runs with at most two attempts: plan_study(*overrides) -> study."""
    monkeypatch.chdir(tmp_path)

    def plan(*overrides):
        study = Study(tmp_path / "study", max_attempts=2)
        study.plan([*tiny_ncf, *OVERRIDES, *overrides])
        return study

    return plan
