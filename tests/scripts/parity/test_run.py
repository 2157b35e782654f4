"""The command trains timetrial's side, keeps what it has trained, and asks for the checkout."""

import subprocess
import sys

import pytest

from timetrial.scripts.parity import curves

COMMAND = [sys.executable, "-P", "-m", "timetrial.scripts.parity", "run", "ncf", "--out", "curves.jsonl"]


@pytest.mark.integration
def test_trains_a_seed_once(tmp_path):
    command = [*COMMAND, "--side", "timetrial", "--seeds", "3", "recipe=ncf/embedded", "recipe.max_epochs=2"]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (first.returncode, first.stdout) == (0, "ncf timetrial seed 3: done\n")
    [curve] = curves.read([tmp_path / "curves.jsonl"])
    assert (curve.seed, curve.epochs, curve.overrides) == (3, (1, 2), ("recipe=ncf/embedded", "recipe.max_epochs=2"))
    assert curve.losses[1] < curve.losses[0] < 0.6
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.integration
def test_the_reference_needs_a_checkout(tmp_path):
    result = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "--checkout" in result.stderr
