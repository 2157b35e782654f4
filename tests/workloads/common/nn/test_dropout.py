"""Compiled dropout: probability, scale, independence of masks, and the same mask in the backward pass."""

import pytest
import torch

from timetrial.workloads.common.nn.dropout import dropout

P = 0.3


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch.manual_seed(5)
    return torch.compile(
        lambda x, training, stock_random=False: dropout(x.tanh(), P, training, stock_random=stock_random),
        backend="aot_eager",
    )


def test_keeps_expected_fraction_and_scales_kept_values(compiled):
    x = torch.full((600, 500), 2.0)
    output = compiled(x, True)
    kept = output != 0
    torch.testing.assert_close(output[kept], (x.tanh() / (1 - P))[kept])
    for mask in (kept, kept[:, ::2], kept[::2]):
        count = mask.numel()
        assert abs(mask.double().mean() - (1 - P)) < 4 * (P * (1 - P) / count) ** 0.5


def test_masks_are_independent(compiled):
    x = torch.ones(2**18)
    masks = [(compiled(x, True) != 0).double() for _ in range(3)]
    for first, second in ((masks[0], masks[1]), (masks[1], masks[2]), (masks[0], masks[2])):
        for lag in (0, 1, 2, 64, 1024, 4096):
            pair = torch.stack([first[lag:], second[: len(second) - lag]])
            assert abs(torch.corrcoef(pair)[0, 1]) < 5 / len(x) ** 0.5, lag
    for lag in (1, 2, 3, 64, 1024, 4096):
        pair = torch.stack([masks[0][lag:], masks[0][:-lag]])
        assert abs(torch.corrcoef(pair)[0, 1]) < 5 / len(x) ** 0.5, lag


def test_backward_uses_the_forward_mask(compiled):
    x = torch.linspace(0.5, 1.5, 2000).requires_grad_()
    output = compiled(x, True)
    output.sum().backward()
    assert torch.equal(x.grad != 0, output != 0)


def test_keeps_everything_in_evaluation(compiled):
    x = torch.randn(1000)
    torch.testing.assert_close(compiled(x, False), x.tanh())


def test_stock_dropout_is_that_of_pytorch(compiled):
    x = torch.full((40, 50), 2.0)
    torch.manual_seed(3)
    stock = compiled(x, True, True)
    torch.manual_seed(3)
    torch.testing.assert_close(stock, torch.nn.functional.dropout(x.tanh(), P))
    torch.manual_seed(3)
    assert not torch.equal(stock == 0, compiled(x, True) == 0)
