"""Random streams: one seed gives four independent ones."""

import random

import torch

from timetrial.runner.training import seeds


def test_streams_differ_and_repeat():
    streams = seeds.derive_streams(1)
    assert streams == seeds.derive_streams(1)
    values = [value for seed in range(50) for value in vars(seeds.derive_streams(seed)).values()]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**63 for value in values)


def test_one_stream_can_be_set_separately():
    streams, changed = seeds.derive_streams(1), seeds.derive_streams(1, data_order=7)
    assert vars(changed) == vars(streams) | {"data_order": 7}


def test_derived_seeds_of_a_stream_differ():
    streams = seeds.derive_streams(1)
    assert len({streams.derive(name, epoch) for name in ("data_order", "sampling") for epoch in range(20)}) == 40


def test_seed_everything_seeds_every_generator():
    def draw():
        seeds.seed_everything(3)
        return random.random(), float(torch.rand(()))

    assert draw() == draw()
