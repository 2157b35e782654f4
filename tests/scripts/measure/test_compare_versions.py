"""The comparison of versions, on the CPU: of this checkout with itself."""

import json
import subprocess
import sys

import pytest


@pytest.fixture
def compare(root, tmp_path, tiny_ncf):
    def run(*options):
        overrides = " ".join([*(override.replace(" ", "") for override in tiny_ncf), f"data_dir={tmp_path}"])
        script = str(root / "scripts/measure/compare_versions.py")
        command = [sys.executable, "-P", script, str(root), overrides, "--steps", "4", "--rounds", "2", *options]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    return run


@pytest.mark.integration
def test_a_version_equals_itself(compare):
    result = compare()
    assert (result["equal_losses"], result["first_difference"]) == (4, None)
    assert result["equal_weights"]
    assert result["equal_optimizer"]
    assert result["together"]
    assert [len(result[version]["step_ms"]) for version in ("this", "other")] == [2, 2]
    assert result["ratio"] > 0


@pytest.mark.integration
def test_one_at_a_time_and_with_another_seed_a_version_repeats_only_itself(compare):
    result = compare("--one-at-a-time", "--other-override", "seed=2")
    assert result["repeats"]
    assert (result["equal_losses"], result["first_difference"]["step"]) == (0, 1)
    assert not result["equal_weights"]
    assert not result["equal_optimizer"]
    assert [len(result[version]["step_ms"]) for version in ("this", "other")] == [4, 2]
