"""The measurement of steps of the TensorFlow engine, on the CPU."""

import pytest


@pytest.mark.tensorflow
def test_steps_are_timed(measure, few_images):
    overrides = ["workload=resnet50", "engine=tensorflow", "accelerator=cpu", "recipe.global_batch_size=8"]
    result = measure("tensorflow_steps.py", "--steps", "2", *overrides, *few_images)
    assert result["devices"] == ["/physical_device:CPU:0"]
    assert result["samples_per_second"] == pytest.approx(8e3 / result["step_ms"], rel=1e-3, abs=0.06)  # rounded to 0.1


@pytest.mark.integration
def test_another_engine_is_refused(start):
    done = start("tensorflow_steps.py", "workload=resnet50", "accelerator=cpu")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("Add engine=tensorflow, or use scripts/measure/steps.py.")
