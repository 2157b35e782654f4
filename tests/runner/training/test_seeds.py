"""One seed, four streams."""

import random

import torch

from timetrial.runner.training import seeds


def test_streams_differ_and_repeat():
    one = seeds.derive(1)
    assert one == seeds.derive(1)
    values = [value for seed in range(50) for value in vars(seeds.derive(seed)).values()]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**63 for value in values)


def test_one_stream_can_be_set_apart():
    one, other = seeds.derive(1), seeds.derive(1, order=7)
    assert other.order == 7
    assert (one.initialisation, one.dropout, one.sampling) == (other.initialisation, other.dropout, other.sampling)


def test_uses_of_a_stream_differ():
    one = seeds.derive(1)
    assert len({one.of(name, epoch) for name in ("order", "sampling") for epoch in range(20)}) == 40


def test_starting_a_stream_repeats_every_generator():
    def draw():
        seeds.start_stream(3)
        return random.random(), float(torch.rand(()))

    assert draw() == draw()
