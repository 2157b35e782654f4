"""The PyTorch engine on a toy task: sums, shares, ranks, precision, warm-up, divergence."""

import io
import multiprocessing
import os
import socket

import numpy as np
import pytest
import torch

from timetrial.runner.core.errors import Diverged
from timetrial.runner.training import distributed
from timetrial.runner.training.workload import BatchSharding


def forks(test):
    """Marks a test that forks: a process that has touched an accelerator cannot."""
    ignore = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    return ignore(pytest.mark.skipif(torch.accelerator.is_available(), reason="forks")(test))


def train(engine, epochs=2):
    for epoch in range(1, epochs + 1):
        for _ in engine.train_epoch(epoch):
            pass
    loss = engine.synchronize().loss
    return loss, {name: value.clone() for name, value in engine.unwrapped_model.state_dict().items()}


def assert_same(one, two, **tolerance):
    for name in one:
        torch.testing.assert_close(one[name], two[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("accumulation", [2, 3])
def test_unequal_micro_batches_equal_the_whole_batch(toy_engine, toy_data, toy_workload, weighted, accumulation):
    whole = train(toy_engine(toy_workload(), toy_data(weighted=weighted)))
    parts = train(toy_engine(toy_workload(), toy_data(BatchSharding(accumulation=accumulation), weighted=weighted)))
    assert whole[0] == pytest.approx(parts[0], rel=1e-5)
    assert_same(whole[1], parts[1], rtol=1e-5, atol=1e-6)


def test_the_update_is_that_of_a_float64_transcription(toy_engine, toy_data, toy_workload):
    data = toy_data(weighted=True)
    engine = toy_engine(toy_workload(), data)
    w1, b1, w2, b2 = (parameter.detach().double().numpy().copy() for parameter in engine.unwrapped_model.parameters())
    momentum = [np.zeros_like(array) for array in (w1, b1, w2, b2)]
    for step, (batch,) in enumerate(data.train_batches(1)):
        x, y, weight = (tensor.double().numpy() for tensor in batch.inputs)
        hidden = x @ w1.T + b1
        active = np.maximum(hidden, 0)
        error = 2 * (active @ w2.T + b2 - y) * weight[:, None] / weight.sum()
        back = (error @ w2) * (hidden > 0)
        rate = 0.05 / (1 + step / 4)
        for array, gradient, buffer in zip(
            (w1, b1, w2, b2), (back.T @ x, back.sum(0), error.T @ active, error.sum(0)), momentum, strict=True
        ):
            buffer *= 0.9
            buffer += gradient
            array -= rate * buffer
    list(engine.train_epoch(1))
    for parameter, array in zip(engine.unwrapped_model.parameters(), (w1, b1, w2, b2), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), array, rtol=2e-5, atol=1e-6)


def test_clipping_bounds_the_update(toy_engine, toy_data, toy_workload):
    engine = toy_engine(toy_workload(learning_rate=1.0), toy_data(), max_grad_norm=1e-3)
    before = torch.nn.utils.parameters_to_vector(engine.unwrapped_model.parameters()).detach().clone()
    next(iter(engine.train_epoch(1)))
    after = torch.nn.utils.parameters_to_vector(engine.unwrapped_model.parameters()).detach()
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(toy_engine, toy_data, toy_workload, precision):
    engine = toy_engine(toy_workload(), toy_data(), precision=precision)
    before = engine.evaluate().quality["fit"]
    loss, _ = train(engine, 20)
    assert np.isfinite(loss)
    assert engine.evaluate().quality["fit"] > 2 * before


def test_warm_up_leaves_no_trace(toy_engine, toy_data, toy_workload):
    # One after the other: engines of one process share torch's global generator.
    one = train(toy_engine(toy_workload(dropout=0.3, batch_norm=True), toy_data()))
    warm = toy_engine(toy_workload(dropout=0.3, batch_norm=True), toy_data())
    warm.warm_up()
    two = train(warm)
    assert one[0] == two[0]
    assert_same(one[1], two[1])


def test_restored_equals_uninterrupted_even_inside_an_epoch(toy_engine, toy_data, toy_workload):
    def build(seed=1):
        return toy_engine(toy_workload(dropout=0.3, batch_norm=True), toy_data(), seed=seed)

    _, expected = train(build())
    stopped = build()
    list(stopped.train_epoch(1))
    steps = stopped.train_epoch(2)
    next(steps), next(steps)
    torch.save(stopped.state_dict(), memory := io.BytesIO())
    memory.seek(0)
    resumed = build(seed=2)
    resumed.load_state_dict(torch.load(memory, weights_only=True))
    assert sum(1 for _ in resumed.train_epoch(2)) == 2
    assert_same(expected, resumed.unwrapped_model.state_dict())


def test_a_loss_that_is_no_number_is_found_at_the_end_of_the_block(toy_engine, toy_data, toy_workload):
    engine = toy_engine(toy_workload(), toy_data(poison=3))
    list(engine.train_epoch(1))
    with pytest.raises(Diverged, match="lower the learning rate"):
        engine.synchronize()


def test_seeds_decide_the_start(toy_engine, toy_data, toy_workload):
    one, two, other = (
        toy_engine(toy_workload(), toy_data(), seed=seed).unwrapped_model.state_dict() for seed in (1, 1, 2)
    )
    assert_same(one, two)
    assert not torch.equal(one["0.weight"], other["0.weight"])


@pytest.mark.slow
def test_compiled_equals_eager(toy_engine, toy_data, toy_workload):
    _, eager = train(toy_engine(toy_workload(), toy_data()))
    _, compiled = train(toy_engine(toy_workload(), toy_data(), compile_mode="default"))
    assert_same(eager, compiled, rtol=1e-5, atol=1e-6)


def in_two_ranks(body):
    """Runs body(world, rank) in two forked gloo ranks; returns what each put into the queue, in rank order."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def rank_of(rank):
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=str(port)
        )
        torch.set_num_threads(1)
        with distributed.join_world(torch.device("cpu"), 30) as world:
            answers.put((rank, body(world, rank)))

    ranks = [context.Process(target=rank_of, args=(rank,)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(answers.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(60)
    return [found[0], found[1]]


@forks
@pytest.mark.parametrize("weighted", [False, True])
def test_two_ranks_equal_one(toy_engine, toy_data, toy_workload, weighted):
    expected_loss, expected = train(toy_engine(toy_workload(), toy_data(weighted=weighted)))
    fit = toy_engine(toy_workload(), toy_data()).evaluate().quality["fit"]

    def body(world, rank):
        engine = toy_engine(toy_workload(), toy_data(BatchSharding(rank, 2, 2), weighted=weighted), world=world)
        before = engine.evaluate().quality["fit"]
        loss, state = train(engine)
        return before, loss, {name: value.numpy() for name, value in state.items()}

    for before, loss, state in in_two_ranks(body):
        assert before == pytest.approx(fit, rel=1e-5)
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert_same(expected, {name: torch.from_numpy(value) for name, value in state.items()}, rtol=1e-5, atol=1e-6)


@forks
def test_batch_norm_is_averaged_over_ranks_before_evaluation(toy_engine, toy_data, toy_workload):
    def body(world, rank):
        engine = toy_engine(toy_workload(batch_norm=True), toy_data(BatchSharding(rank, 2), samples=48), world=world)
        list(engine.train_epoch(1))
        own = engine.unwrapped_model[1].running_mean.clone()
        engine.evaluate()
        return own.numpy(), engine.unwrapped_model[1].running_mean.numpy()

    (own_0, shared_0), (own_1, shared_1) = in_two_ranks(body)
    assert not np.allclose(own_0, own_1)
    np.testing.assert_allclose(shared_0, (own_0 + own_1) / 2, rtol=1e-6)
    np.testing.assert_array_equal(shared_0, shared_1)


def test_shares_cover_every_sample_once():
    for samples in (0, 1, 5, 16, 17):
        for ranks, accumulation in ((1, 1), (2, 3), (4, 2)):
            parts = [
                part
                for rank in range(ranks)
                for part in BatchSharding(rank, ranks, accumulation).micro_batches(samples)
            ]
            covered = [index for part in parts for index in range(part.start, part.stop)]
            assert covered == list(range(samples))
            evaluated = [
                index for rank in range(ranks) for index in range(samples)[BatchSharding(rank, ranks).shard(samples)]
            ]
            assert evaluated == list(range(samples))
