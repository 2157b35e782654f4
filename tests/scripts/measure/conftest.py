"""Measurements on the CPU, with little data."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats


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


@pytest.fixture(scope="session")
def welch_ratio():
    """welch_ratio(values, base, level=0.95): the ratio of geometric means, and the bounds of Welch's interval on logs.

    The interval has at most twice the degrees of freedom of the smaller side.
    """

    def compute(values, base, level=0.95):
        logs = np.log(values), np.log(base)
        freedom = min(stats.ttest_ind(*logs, equal_var=False).df, 2 * (min(map(len, logs)) - 1))
        difference, error = logs[0].mean() - logs[1].mean(), np.hypot(*map(stats.sem, logs))
        return np.exp((difference, *stats.t.interval(level, freedom, difference, error)))

    return compute


@pytest.fixture(scope="session")
def ratio_text(welch_ratio):
    """ratio_text(values, base): that ratio with its 95% interval, as tables show it."""
    return lambda values, base: "{:.3g} ({:.3g} to {:.3g})".format(*welch_ratio(values, base))
