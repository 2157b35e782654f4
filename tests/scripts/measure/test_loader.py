"""The measurement of reading processes."""

import json
import subprocess
import sys

import pytest

FEW_IMAGES = ["recipe.data.generate.train_per_class=9", "recipe.data.generate.val_per_class=2"]


@pytest.mark.integration
def test_images_a_second_are_printed(root, tmp_path):
    overrides = ["workload=resnet50", *FEW_IMAGES, "recipe.data.workers=1", f"data_dir={tmp_path}"]
    command = [sys.executable, "-P", str(root / "scripts/measure/loader.py"), "--batches", "3", *overrides]
    result = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert result["workers"] == 1
    assert result["images_per_second"] > 0 < result["rank_ms_per_batch"]


@pytest.mark.integration
def test_a_workload_without_images_is_refused(root, tmp_path):
    command = [sys.executable, "-P", str(root / "scripts/measure/loader.py"), "workload=ncf", f"data_dir={tmp_path}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1][-27:]) == (2, "The workload has no images.")
