"""One seed, four streams."""

import random

import torch

from timetrial.runner.training import seeds


def test_streams_differ_and_repeat():
    one = seeds.derive_streams(1)
    assert one == seeds.derive_streams(1)
    values = [value for seed in range(50) for value in vars(seeds.derive_streams(seed)).values()]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**63 for value in values)


def test_one_stream_can_be_set_apart():
    one, other = seeds.derive_streams(1), seeds.derive_streams(1, order=7)
    assert other.order == 7
    assert (one.initialization, one.dropout, one.sampling) == (other.initialization, other.dropout, other.sampling)


def test_uses_of_a_stream_differ():
    one = seeds.derive_streams(1)
    assert len({one.derive(name, epoch) for name in ("data_order", "sampling") for epoch in range(20)}) == 40


def test_starting_a_stream_repeats_every_generator():
    def draw():
        seeds.seed_everything(3)
        return random.random(), float(torch.rand(()))

    assert draw() == draw()
