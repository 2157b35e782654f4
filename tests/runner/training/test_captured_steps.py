"""What captured steps rest on: state is loaded in place. The capture itself needs a GPU (test_on_accelerator.py)."""

import copy

import pytest
import torch
from torch.optim import SGD, Adam

from timetrial.runner.training.captured_steps import CapturedSteps, load_optimizer_state
from timetrial.runner.training.workload import Batch

OPTIMIZERS = [lambda weights: Adam(weights, 0.1, fused=True), lambda weights: SGD(weights, 0.1, 0.9, fused=True)]


def train(model, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().sum().backward()
        optimizer.step()


def tensors_of(optimizer):
    return [value for state in optimizer.state.values() for value in state.values()]


@pytest.mark.parametrize("build", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_state_is_loaded_into_the_tensors_that_a_graph_writes(build, steps_before):
    """As after the warm-up: what was saved before the first step, or after some, replaces what the warm-up left."""
    model = torch.nn.Linear(3, 2)
    expected = copy.deepcopy(model)
    optimizer, expected_optimizer = build(model.parameters()), build(expected.parameters())
    train(model, optimizer, steps_before, seed=1)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, seed=2)
    optimizer.param_groups[0]["lr"] = 7.0
    places = [tensor.data_ptr() for tensor in tensors_of(optimizer)]
    model.load_state_dict(saved[0])
    load_optimizer_state(optimizer, saved[1])
    assert [tensor.data_ptr() for tensor in tensors_of(optimizer)] == places
    assert optimizer.param_groups[0]["lr"] == 0.1
    train(model, optimizer, 4, seed=3)
    train(expected, expected_optimizer, steps_before, seed=1)
    train(expected, expected_optimizer, 4, seed=3)
    for weight, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.gpu
def test_each_step_is_divided_by_its_own_weight():
    device = torch.device("cuda", 0)
    weight = torch.zeros(3, device=device, requires_grad=True)
    optimizer = SGD([weight], 1.0, fused=True)
    steps = CapturedSteps(optimizer, device)

    def update(batches, total_weight):
        optimizer.zero_grad()
        (sum((weight * batch.inputs).sum() for batch in batches) / total_weight).backward()
        optimizer.step()

    batch = Batch(torch.full((3,), 12.0, device=device), 1.0, 1)
    steps.capture(update, [batch])
    for total_weight in (1.0, 2.0, 2.0, torch.tensor(3.0, device=device), 3.0, 2, 1.0):
        with torch.no_grad():
            weight.zero_()
        assert steps.replay([batch], total_weight)
        assert weight.tolist() == [-12.0 / float(total_weight)] * 3
