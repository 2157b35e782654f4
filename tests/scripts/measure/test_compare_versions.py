"""The comparison of versions, on the CPU: of this checkout with itself."""

import json
import subprocess
import sys

import pytest

RATINGS = "recipe.data.generate={num_users:60,num_items:200,num_ratings:1800,num_clusters:3}"


@pytest.fixture
def compare(root, tmp_path):
    def run(*options):
        overrides = f"accelerator=cpu accelerator.threads=1 data_dir={tmp_path} {RATINGS} recipe.data.eval_negatives=50"
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
