"""Compiled dropout: probability, scale, independence of masks, and the same mask in the backward pass."""

from collections import Counter

import pytest
import torch

from timetrial.runner.training.seeds import derive_seed, seed_everything
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


def test_masks_are_uncorrelated(compiled):
    """Within a mask, and between masks of layers or steps and of ranks: their sums of squares are those of noise."""
    x, draws, lags = torch.ones(512, 1024), 48, (1, 2, 64, 1024, 2048, 3072, 4096, 12288)
    sums = Counter()
    for draw in range(draws):
        seed_everything(derive_seed(draw, 0))
        first, second = (standardized(compiled(x, True)) for _ in range(2))
        seed_everything(derive_seed(draw, 1))
        other_rank = standardized(compiled(x, True))
        sums.update({f"lag {lag}": noise(first[lag:], first[:-lag]) ** 2 for lag in lags})
        for lag in (0, 1024, 3072):
            sums[f"layer, lag {lag}"] += noise(first[lag:], second[: len(second) - lag]) ** 2
            sums[f"rank, lag {lag}"] += noise(first[lag:], other_rank[: len(first) - lag]) ** 2
    assert max(sums.values()) < draws + 5 * (2 * draws) ** 0.5, sums


def standardized(output):
    """The mask of an output, flat, with mean 0 and variance 1."""
    return ((output != 0).flatten().double() - (1 - P)) / (P * (1 - P)) ** 0.5


def noise(first, second):
    """The correlation of two masks in units of its standard deviation if they are independent."""
    return float((first * second).mean()) * len(first) ** 0.5


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
