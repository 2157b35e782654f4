"""Device graphs: their inputs, and captures that fail. Captures that succeed are tested with the workloads."""

import subprocess
import sys

import pytest
import torch

from timetrial.runner.core.errors import DeviceError, OutOfMemory
from timetrial.runner.hardware.device_graphs import StaticInputs, flatten_inputs, to_capture_error

IDS = torch.arange(3)


def test_keys_differ_by_structure_shapes_dtypes_and_numbers():
    values = [(IDS, 5), [IDS, 5], (IDS, 6), (IDS[:2], 5), (IDS.int(), 5), (IDS, 5, IDS), ((IDS, 5),) * 2]
    assert len({flatten_inputs(value)[0] for value in values}) == len(values)
    assert flatten_inputs((IDS + 1, 5))[0] == flatten_inputs(values[0])[0]


def test_inputs_are_overwritten_where_they_are():
    """Tensors of two dtypes alternate, which are copied by dtype, and a strided one keeps its strides."""
    values = {"a": (IDS, torch.rand(2, 3).T), "b": [IDS.bool(), IDS * 2, 7]}
    inputs = StaticInputs(values)
    _, own = flatten_inputs(inputs.values)
    places = [tensor.data_ptr() for tensor in own]
    later = {"a": (IDS + 5, torch.rand(2, 3).T), "b": [~IDS.bool(), IDS * 3, 7]}
    inputs.copy_from(flatten_inputs(later)[1])
    assert inputs.values["b"][2] == 7
    assert [tensor.data_ptr() for tensor in own] == places
    assert own[1].stride() == (1, 3)
    assert all(map(torch.equal, own, flatten_inputs(later)[1]))
    assert torch.equal(values["a"][0], torch.arange(3))


@pytest.mark.parametrize(
    ("first", "expected", "remedy"),
    [
        (
            RuntimeError("FIND found no engine.\nMore."),
            DeviceError,
            "(FIND found no engine): add engine.capture=false.",
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), OutOfMemory, "halve tuning.micro_batch_size"),
        (None, DeviceError, "(operation failed due to a previous error during capture): add engine.capture=false."),
    ],
)
def test_a_failed_capture_states_the_first_error(first, expected, remedy):
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = first
    translated = to_capture_error(error)
    assert type(translated) is expected
    assert remedy in str(translated)


CAPTURE = """
import torch
from timetrial.runner.hardware.device_graphs import capture_graph
device = torch.device("cuda", 0)
x = torch.ones(4, device=device)
capture_graph(device, lambda: {work})
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("work", "error"),
    [("x.sum().item()", "DeviceError"), ("torch.empty(1 << 50, device=device)", "OutOfMemory")],
)
def test_a_capture_on_a_gpu_fails_with_the_first_error(work, error):
    """In a process of its own, because the allocator stays in the capture that failed."""
    command = [sys.executable, "-c", CAPTURE.format(work=work)]
    assert f"errors.{error}: " in subprocess.run(command, capture_output=True, text=True, check=False).stderr
