"""When steps are compiled and captured unless a user says otherwise."""

import pytest

from timetrial.runner.config.schema import WorkloadConfig
from timetrial.runner.config.step_execution import can_capture, default_compile_mode


@pytest.mark.parametrize(
    ("precision", "compile_mode", "expected"),
    [
        ("bf16", None, True),
        ("fp32", "default", True),
        ("fp16", None, False),
        ("bf16", "reduce-overhead", False),
        ("bf16", "max-autotune", False),
        ("bf16", "max-autotune-no-cudagraphs", True),
    ],
)
def test_steps_with_work_of_the_host_or_graphs_of_the_compiler_cannot_be_captured(precision, compile_mode, expected):
    assert can_capture(precision, compile_mode) is expected


@pytest.mark.parametrize(("faster_captured", "precision"), [(False, "bf16"), (False, "fp16"), (True, "fp16")])
def test_models_are_compiled_unless_capturing_is_faster_and_possible(faster_captured, precision):
    workload = WorkloadConfig(compiled=True, faster_captured=faster_captured)
    assert default_compile_mode("torch", True, "reference", workload, precision) == "default"
    assert default_compile_mode("torch", True, "mini", workload, precision) is None
    captured = WorkloadConfig(compiled=True, faster_captured=True)
    assert default_compile_mode("torch", True, "reference", captured, "bf16") is None
