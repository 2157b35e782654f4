"""Dropout as compilers see it: the share, the scale, independence, and the same values dropped backwards."""

import pytest
import torch

from timetrial.workloads.common.nn.dropout import dropout

SHARE = 0.3


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch.manual_seed(5)
    return torch.compile(lambda x, training: dropout(x.tanh(), SHARE, training), backend="aot_eager")


def test_kept_values_are_scaled_and_their_share_is_the_rest(compiled):
    x = torch.full((600, 500), 2.0)
    found = compiled(x, True)
    kept = found != 0
    torch.testing.assert_close(found[kept], (x.tanh() / (1 - SHARE))[kept])
    for places in (kept, kept[:, ::2], kept[::2]):
        count = places.numel()
        assert abs(places.double().mean() - (1 - SHARE)) < 4 * (SHARE * (1 - SHARE) / count) ** 0.5


def test_masks_know_nothing_of_each_other(compiled):
    x = torch.ones(2**18)
    masks = [(compiled(x, True) != 0).double() for _ in range(3)]
    for one, other in ((masks[0], masks[1]), (masks[1], masks[2]), (masks[0], masks[2])):
        for lag in (0, 1, 2, 64, 1024, 4096):
            pair = torch.stack([one[lag:], other[: len(other) - lag]])
            assert abs(torch.corrcoef(pair)[0, 1]) < 5 / len(x) ** 0.5, lag
    for lag in (1, 2, 3, 64, 1024, 4096):
        pair = torch.stack([masks[0][lag:], masks[0][:-lag]])
        assert abs(torch.corrcoef(pair)[0, 1]) < 5 / len(x) ** 0.5, lag


def test_gradients_pass_where_values_did(compiled):
    x = torch.linspace(0.5, 1.5, 2000).requires_grad_()
    found = compiled(x, True)
    found.sum().backward()
    assert torch.equal(x.grad != 0, found != 0)


def test_nothing_is_dropped_outside_of_training(compiled):
    x = torch.randn(1000)
    torch.testing.assert_close(compiled(x, False), x.tanh())
