"""SGD under loss scaling."""

import torch

from timetrial.workloads.common.nn.sgd import sgd


def weights():
    return [torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in (5, 70_000)]


def give(parameters, value):
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)


def test_an_update_that_is_skipped_leaves_no_trace():
    skipped, plain = weights(), weights()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    ours = sgd(skipped, 0.1, 0.9, weight_decay=0.01)
    scaler.scale(torch.zeros(()))
    give(skipped, float("inf"))
    scaler.step(ours)
    scaler.update()
    assert all(not state["momentum_buffer"].any() for state in ours.state.values())
    stock = torch.optim.SGD(plain, 0.1, 0.9, weight_decay=0.01)
    for value in (0.5, -0.25, 1.0):
        give(skipped, value * scaler.get_scale())
        scaler.step(ours)
        scaler.update()
        give(plain, value)
        stock.step()
    for one, other in zip(skipped, plain, strict=True):
        torch.testing.assert_close(one, other)
