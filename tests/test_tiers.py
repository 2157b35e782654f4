"""The tiers of the tests: together they are the whole, and none overlaps another.

One folder that has tests of each stands for all, because collecting the whole four times takes minutes.
"""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def collect(root, tier):
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--tier={tier}", "tests/workloads/ncf"]
    command = [sys.executable, "-P", "-m", "pytest", *options]
    env = os.environ | {"PYTEST_ADDOPTS": ""}  # --verbose, say, prints a tree
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_the_tiers_partition_the_whole(root):
    unit, full, gpu, everything = (collect(root, tier) for tier in ("unit", "full", "gpu", "all"))
    assert unit < full
    assert not full & gpu
    assert full | gpu == everything
    assert unit
    assert gpu
