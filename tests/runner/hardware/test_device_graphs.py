"""Inputs of device graphs. The capture itself needs a GPU (tests/workloads/test_on_accelerator.py)."""

import torch

from timetrial.runner.hardware.device_graphs import StaticInputs, flatten_inputs

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
