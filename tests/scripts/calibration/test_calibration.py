"""A short form of `scripts/calibrate`: every table, with fewer replicates."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.integration
def test_no_bar_is_missed():
    """The bars allow two standard errors of 400 replicates; the seed is fixed, so that the result is."""
    command = [ROOT / "scripts" / "calibrate", "--replicates", "400"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("# Calibration of the verdicts")
    assert "| ratio; normal, CV 4% |" in process.stdout
