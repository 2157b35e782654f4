"""Adam on pieces of tables, against PyTorch's on whole ones."""

import pytest
import torch

from timetrial.workloads.ncf.adam import PiecewiseAdam

SETTINGS = (0.01, (0.9, 0.99), 1e-8)


def make_params(device, rows):
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, device=device)) for size in ((rows, 24), (5,), (4096, 3), (2, 9))]


def train(optimizer, params, scaler):
    """Take five steps; the gradients of the third are not finite."""
    generator = torch.Generator(params[0].device).manual_seed(2)
    for step in range(5):
        for param in params:
            gradient = torch.randn(param.shape, generator=generator, device=param.device)
            param.grad = gradient * scaler.scale(torch.ones((), device=param.device))
            if step == 2:
                param.grad[..., -1] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    return [(param.detach(), *optimizer.state[param].values()) for param in params]


def check_equal_to_pytorch(device, rows):
    """With a loss scaler, which skips a step."""
    results = []
    for pieces in (True, False):
        params = make_params(device, rows)
        if pieces:
            optimizer = PiecewiseAdam(params, *SETTINGS)
            optimizer.divides = True
        else:
            optimizer = torch.optim.Adam(params, *SETTINGS, fused=True)
        results.append(train(optimizer, params, torch.amp.GradScaler(device, init_scale=64.0)))
    for ours, theirs in zip(*results, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("rows", [7, 40_000])
def test_pieces_are_updated_as_whole_tables(rows):
    check_equal_to_pytorch("cpu", rows)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [7, 40_000, 200_000])
def test_pieces_are_updated_as_whole_tables_on_a_gpu(rows):
    check_equal_to_pytorch(torch.accelerator.current_accelerator().type, rows)
