"""The sum of gradients over two ranks, against gradients of both ranks' losses on one."""

import pytest
import torch
from torch import nn

from timetrial.runner.training import gradient_reduction
from timetrial.runner.training.gradient_reduction import GradientReduction


class Network(nn.Module):
    """Convolutions, one of them channels last; a layer in another dtype, and one that no input reaches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        self.second = nn.Conv2d(5, 4, 3).to(memory_format=torch.channels_last)
        self.third = nn.Linear(4, 2, dtype=torch.float64)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(2, 2, dtype=torch.float64).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.third(self.second(self.first(x)).mean((2, 3)).double())).square().sum()


def inputs(rank):
    return [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * rank + part)) for part in range(2)]


def build():
    torch.manual_seed(1)
    return Network()


@pytest.mark.parametrize(("overlap", "bucket_bytes"), [(True, 1), (True, 600), (True, 25 << 20), (False, 1)], ids=str)
def test_gradients_are_those_of_all_ranks(in_two_ranks, monkeypatch, overlap, bucket_bytes):
    monkeypatch.setattr(gradient_reduction, "_BUCKET_BYTES", bucket_bytes)
    expected = build()
    sum(expected(part) for rank in range(2) for part in inputs(rank)).backward()

    def body(world, rank):
        network = build()
        reduction = GradientReduction(network.parameters(), world, overlap=overlap)
        for _ in range(2):  # the second step finds everything as the first did
            network.zero_grad(set_to_none=True)
            first, second = inputs(rank)
            with reduction.paused():
                network(first).backward()
            network(second).backward()
            reduction.finish()
        strides = all(
            weight.grad.stride() == weight.stride() for weight in network.parameters() if weight.requires_grad
        )
        return strides, {
            name: weight.grad.numpy() for name, weight in network.named_parameters() if weight.requires_grad
        }

    for strides, gradients in in_two_ranks(body):
        assert strides
        assert not gradients["unused.weight"].any()
        assert "frozen.weight" not in gradients
        for name, gradient in gradients.items():
            weight = expected.get_parameter(name)
            summed = torch.zeros_like(weight) if weight.grad is None else weight.grad
            torch.testing.assert_close(torch.from_numpy(gradient), summed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("overlap", "messages"), [(True, [1, 2]), (False, [0, 1])], ids=["overlap", "after"])
def test_communication_begins_within_the_backward_pass_if_it_is_to_overlap(in_two_ranks, overlap, messages):
    def body(world, rank):
        sent, all_reduce = [], gradient_reduction.dist.all_reduce
        gradient_reduction.dist.all_reduce = lambda *args, **options: sent.append(1) or all_reduce(*args, **options)
        try:
            layers = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
            reduction, counts = GradientReduction(layers.parameters(), world, overlap=overlap), []
            layers[0].bias.register_hook(lambda gradient: counts.append(len(sent)))
            layers(torch.ones(1, 600)).sum().backward()
            reduction.finish()
            return [*counts, len(sent)]
        finally:
            gradient_reduction.dist.all_reduce = all_reduce

    assert in_two_ranks(body) == [messages] * 2


def test_an_error_while_reduction_is_paused_does_not_leave_it_paused(in_two_ranks):
    def body(world, rank):
        layer = nn.Linear(3, 1)
        reduction = GradientReduction(layer.parameters(), world, overlap=True)
        with pytest.raises(ZeroDivisionError), reduction.paused():
            1 / 0  # noqa: B018
        layer(torch.full((1, 3), float(rank))).sum().backward()
        reduction.finish()
        return layer.weight.grad.tolist()

    assert in_two_ranks(body) == [[[1.0] * 3]] * 2
