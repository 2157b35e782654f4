"""The measurement of steps of the TensorFlow engine, on the CPU."""

import json
import subprocess
import sys

import pytest

FEW_IMAGES = ["recipe.data.generate.train_per_class=9", "recipe.data.generate.val_per_class=2"]


@pytest.mark.tensorflow
def test_steps_are_timed(root, tmp_path):
    command = [
        sys.executable,
        "-P",
        str(root / "scripts/measure/tensorflow_steps.py"),
        "--steps",
        "2",
        "workload=resnet50",
    ]
    command += ["engine=tensorflow", "accelerator=cpu", "recipe.global_batch_size=8", *FEW_IMAGES]
    done = subprocess.run([*command, f"data_dir={tmp_path}"], cwd=tmp_path, capture_output=True, check=True)
    result = json.loads(done.stdout)
    assert result["devices"] == ["/physical_device:CPU:0"]
    assert result["samples_per_second"] == pytest.approx(8e3 / result["step_ms"], rel=1e-3, abs=0.06)  # rounded to 0.1


@pytest.mark.integration
def test_another_engine_is_refused(root, tmp_path):
    command = [
        sys.executable,
        "-P",
        str(root / "scripts/measure/tensorflow_steps.py"),
        "workload=resnet50",
        "accelerator=cpu",
    ]
    done = subprocess.run([*command, f"data_dir={tmp_path}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("Add engine=tensorflow, or use scripts/measure/steps.py.")
