"""Measurements on the CPU, with little data."""

import json
import subprocess
import sys

import pytest


@pytest.fixture
def start(root, tmp_path):
    """Run a script of scripts/measure: start(name, *arguments) -> completed process, with its output as text."""

    def run(name, *arguments):
        command = [sys.executable, "-P", str(root / "scripts/measure" / name), *arguments, f"data_dir={tmp_path}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


@pytest.fixture
def measure(start):
    """Return the JSON line that a script prints: measure(name, *arguments) -> dict."""

    def run(name, *arguments):
        done = start(name, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def few_images():
    """Overrides of a run with few images: seconds on one core."""
    return ["recipe.data.generate.train_per_class=9", "recipe.data.generate.val_per_class=2"]
