"""SGD under loss scaling."""

import torch

from timetrial.workloads.common.nn.sgd import sgd


def make_params():
    return [torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in (5, 70_000)]


def set_gradients(params, value):
    for param in params:
        param.grad = torch.full_like(param, value)


def test_skipped_update_leaves_no_trace():
    scaled_params, params = make_params(), make_params()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = sgd(scaled_params, 0.1, 0.9, weight_decay=0.01)
    scaler.scale(torch.zeros(()))
    set_gradients(scaled_params, float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert all(not state["momentum_buffer"].any() for state in optimizer.state.values())
    expected = torch.optim.SGD(params, 0.1, 0.9, weight_decay=0.01)
    for value in (0.5, -0.25, 1.0):
        set_gradients(scaled_params, value * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        set_gradients(params, value)
        expected.step()
    for scaled_param, param in zip(scaled_params, params, strict=True):
        torch.testing.assert_close(scaled_param, param)
