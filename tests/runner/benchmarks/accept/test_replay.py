"""Replays of training steps: every flipped bit changes a checksum, and the step and tensor are named."""

import itertools
import time

import pytest
import torch

from timetrial.runner.benchmarks.accept.figures import Difference
from timetrial.runner.benchmarks.accept.replay import (
    FLIP_VARIABLE,
    checksums,
    first_difference,
    flip_bit,
    flip_requested_bit,
    replay,
)

STEPS = 3


def replay_toy(toy_engine, toy_workload, toy_data, after_step=lambda repeat, step, model: None):
    engine = toy_engine(toy_workload(dropout=0.5, batch_norm=True), toy_data())
    batches = list(itertools.islice(engine.data.train_batches(1), STEPS))
    return replay("toy", engine, batches, time.time(), after_step)


def test_equal_steps_are_bit_equal_with_dropout_and_batch_norm(toy_engine, toy_workload, toy_data):
    done = replay_toy(toy_engine, toy_workload, toy_data)
    assert done.difference is None
    assert (done.repeats, len(done.trace)) == (3, STEPS)
    assert done.trace[0] != done.trace[1]  # it trains
    assert replay_toy(toy_engine, toy_workload, toy_data).trace == done.trace  # another engine, as on another GPU


def test_the_step_and_tensor_of_a_flipped_bit_are_named(toy_engine, toy_workload, toy_data, monkeypatch):
    monkeypatch.setenv(FLIP_VARIABLE, "2/3/4.weight")
    done = replay_toy(toy_engine, toy_workload, toy_data, flip_requested_bit)
    assert done.difference == Difference(2, 3, "4.weight")
    assert done.repeats == 2  # it ends there


def test_a_flip_spreads_and_its_first_tensor_is_named(toy_engine, toy_workload, toy_data):
    def flip_early(repeat, step, model):
        if (repeat, step) == (3, 1):
            flip_bit(model.state_dict()["0.bias"])

    assert replay_toy(toy_engine, toy_workload, toy_data, flip_early).difference == Difference(3, 1, "0.bias")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_the_checksum_is_the_sum_of_bits_times_odd_numbers(dtype):
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    module = torch.nn.Module()
    module.register_buffer("tensor", (values > 0) if dtype == torch.bool else (100 * values).to(dtype))
    size = module.tensor.element_size()
    content = module.tensor.view(torch.uint8).numpy().tobytes()
    signed = size > 1
    bits = [int.from_bytes(content[at : at + size], "little", signed=signed) for at in range(0, len(content), size)]
    expected = sum(value * (2 * place + 1) for place, value in enumerate(bits)) % 2**64
    assert checksums(module)["tensor"] % 2**64 == expected


def test_the_earliest_step_counts_before_the_first_tensor():
    expected = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert first_difference(expected, [{"a": 1, "b": 2}, {"a": 3, "b": 4}], 2) is None
    assert first_difference(expected, [{"a": 1, "b": 9}, {"a": 9, "b": 4}], 2) == Difference(2, 1, "b")
