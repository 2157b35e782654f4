"""When steps are compiled and captured unless a user says otherwise."""

import pytest

from timetrial.runner.config.schema import WorkloadConfig
from timetrial.runner.config.step_execution import can_capture, default_compile_mode


@pytest.mark.parametrize(
    ("compile_mode", "expected"),
    [
        (None, True),
        ("default", True),
        ("reduce-overhead", False),
        ("max-autotune", False),
        ("max-autotune-no-cudagraphs", True),
    ],
)
def test_steps_with_graphs_of_the_compiler_cannot_be_captured(compile_mode, expected):
    assert can_capture(compile_mode) is expected


def test_models_are_compiled_at_the_reference_scale():
    workload = WorkloadConfig(compiled=True)
    assert default_compile_mode("torch", True, "reference", workload) == "default"
    assert default_compile_mode("torch", True, "mini", workload) is None
    assert default_compile_mode("torch", True, "reference", WorkloadConfig(compiled=False)) is None
