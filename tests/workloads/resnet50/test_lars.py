"""LARS against a float64 implementation of the reference's update, one tensor at a time."""

import math

import pytest
import torch

from timetrial.workloads.resnet50.lars import LARS


def reference_update(weight, gradient, momentum, *, lr, decay, adapt):
    """Return weight and momentum as lists: You et al. 2017 with the momentum of MLPerf's TensorFlow 2 reference."""
    trust_ratio = 1.0
    if adapt:
        weight_norm, gradient_norm = (
            math.sqrt(sum(value * value for value in values)) for values in (weight, gradient)
        )
        if weight_norm > 0 and gradient_norm > 0:
            trust_ratio = 0.001 * weight_norm / (gradient_norm + decay * weight_norm)
    else:
        decay = 0.0
    updated = [0.9 * m + lr * trust_ratio * (g + decay * w) for w, g, m in zip(weight, gradient, momentum, strict=True)]
    return [w - m for w, m in zip(weight, updated, strict=True)], updated


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_three_updates_equal_the_reference(zero, on_device):
    torch.manual_seed(1)
    matrix, vector = torch.randn(4, 5, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    if zero:
        matrix.zero_()
    parameters = [torch.nn.Parameter(matrix.clone()), torch.nn.Parameter(vector.clone())]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "adapt": False, "weight_decay": 0.0}]
    optimizer = LARS(groups, lr=2.0, momentum=0.9, weight_decay=1e-3)
    if on_device:  # as in captured steps
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    expected = [[tensor.flatten().tolist(), [0.0] * tensor.numel()] for tensor in (matrix, vector)]
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        for entry, parameter, adapt in zip(expected, parameters, (True, False), strict=True):
            gradient = parameter.grad.flatten().tolist()
            entry[0], entry[1] = reference_update(entry[0], gradient, entry[1], lr=2.0, decay=1e-3, adapt=adapt)
        optimizer.step()
    for entry, parameter in zip(expected, parameters, strict=True):
        assert parameter.detach().flatten().tolist() == pytest.approx(entry[0], rel=1e-12, abs=1e-15)
