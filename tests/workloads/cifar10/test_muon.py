"""Muon: orthogonal updates by the singular value decomposition, and SGD, both transcribed in float64."""

import pytest
import torch

from timetrial.workloads.cifar10.muon import Muon, orthogonalize


def test_singular_values_become_almost_one_and_vectors_stay():
    torch.manual_seed(1)
    shapes = [(8, 3, 3, 3), (16, 8, 3, 3), (16, 8, 3, 3), (40, 2, 1, 1)]  # wide, two of one shape, tall
    tensors = [torch.randn(shape) * scale for shape, scale in zip(shapes, (1, 1e-3, 50, 1), strict=True)]
    for tensor, found in zip(tensors, orthogonalize(tensors), strict=True):
        assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
        left, _, right = torch.linalg.svd(tensor.flatten(1).double(), full_matrices=False)
        rotated = left.T @ found.flatten(1).double() @ right.T
        assert 0.5 < rotated.diagonal().min() <= rotated.diagonal().max() < 1.4
        assert (rotated - rotated.diagonal().diag()).abs().max() < 0.05


@pytest.mark.parametrize("on_device", [False, True])
def test_updates_equal_a_transcription(on_device):
    torch.manual_seed(1)
    filters, bias = torch.randn(6, 4, 3, 3, requires_grad=True), torch.randn(5, requires_grad=True)
    groups = [
        {"params": [filters], "lr": 0.3, "momentum": 0.6, "orthogonal": True},
        {"params": [bias], "lr": 0.1, "momentum": 0.8, "weight_decay": 0.01},
    ]
    optimizer, sgd_bias = Muon(groups), bias.detach().clone().requires_grad_()
    sgd = torch.optim.SGD([sgd_bias], 0.1, 0.8, weight_decay=0.01, nesterov=True)
    if on_device:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    expected, momentum = filters.detach().double(), torch.zeros(6, 4, 3, 3, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(6, 4, 3, 3)
        filters.grad, bias.grad = gradient.clone(), torch.randn(5)
        sgd_bias.grad = bias.grad.clone()
        momentum = 0.6 * momentum + gradient.double()
        left, _, right = torch.linalg.svd((gradient.double() + 0.6 * momentum).flatten(1), full_matrices=False)
        expected = expected * 6**0.5 / expected.norm() - 0.3 * (left @ right).view_as(expected)
        before = filters.detach().clone()
        optimizer.step()
        sgd.step()
        torch.testing.assert_close(bias, sgd_bias)
        change = (filters - before * 6**0.5 / before.norm()).flatten(1).double()
        cosine = (change * -(left @ right)).sum() / change.norm() / (left @ right).norm()
        assert cosine > 0.97
    assert (filters.double() - expected).norm() < 0.2 * expected.norm()
