"""The throughput that accept measures, on a small run."""

import time

import pytest
import torch

from timetrial.runner.benchmarks.accept import training
from timetrial.runner.benchmarks.accept.training import common_overrides, measure_rates, open_engine
from timetrial.runner.benchmarks.accept.workloads import read_workloads


@pytest.fixture
def opened(tmp_path):
    cpu = torch.device("cpu")
    return open_engine([*read_workloads()[0].cpu, *common_overrides(cpu, tmp_path)], cpu)


@pytest.mark.parametrize(("seconds", "counted"), [(0, 2), (3600, 7)])
def test_blocks_are_counted_after_the_first_until_time_is_up(seconds, counted, opened, monkeypatch):
    config, engine = opened
    epochs, train_epoch = [], engine.train_epoch

    def follow(epoch):
        epochs.append(epoch)
        yield from train_epoch(epoch)

    monkeypatch.setattr(engine, "train_epoch", follow)
    rates, blocks = measure_rates(config, engine, "cpu", time.time() + seconds)
    assert len(rates.values) == counted
    assert all(value > 0 for value in (*rates.values, next(blocks)))
    assert epochs == list(range(1, counted + 3))


def test_each_block_trains_the_first_steps_of_an_epoch_from_the_same_state(opened, monkeypatch):
    config, engine = opened
    weights = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    steps, train_step = [], engine.train_step

    def follow(micro_batches):
        if len(steps) % config.throughput.steps == 0:
            assert all(torch.equal(tensor, weights[name]) for name, tensor in engine.model.state_dict().items())
        steps.append(micro_batches)
        return train_step(micro_batches)

    monkeypatch.setattr(engine, "train_step", follow)
    blocks = training.measure_blocks(engine, "samples/s")
    assert next(blocks) > 0
    assert next(blocks) > 0
    assert len(steps) == 2 * config.throughput.steps
