"""The measurement of training steps, on the CPU, where no kernels are traced."""

import pytest


@pytest.mark.integration
@pytest.mark.parametrize("gpus", [1, 2])
def test_times_of_steps_are_printed(measure, tiny_ncf, gpus):
    result = measure("steps.py", "--steps", "3", f"gpus={gpus}", *tiny_ncf)
    assert result["step_ms"] >= result["host_ms"] > 0
