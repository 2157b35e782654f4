"""The fuzzer of the readers, for a fixed number of inputs."""

import subprocess
import sys

import pytest


@pytest.mark.integration
def test_damaged_files_neither_crash_nor_block(root):
    command = [sys.executable, "-P", str(root / "scripts/dev/fuzz_readers.py"), "--inputs", "500", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "crashes: 0, hangs: 0, files touched outside of the output folders: 0" in done.stdout
    assert "inputs: 500" in done.stdout
