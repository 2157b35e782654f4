"""The PyTorch engine on a toy task: accumulation, ranks, precision, warm-up, checkpoints, divergence."""

import io
import multiprocessing

import numpy as np
import pytest
import torch

from timetrial.runner.core.errors import Diverged, LostRank
from timetrial.runner.training.workload import BatchSharding


def train(engine, epochs=2):
    for epoch in range(1, epochs + 1):
        for _ in engine.train_epoch(epoch):
            pass
    loss = engine.synchronize().loss
    return loss, {name: value.clone() for name, value in engine.model.state_dict().items()}


def assert_same(actual, expected, **tolerance):
    for name in actual:
        torch.testing.assert_close(actual[name], expected[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("accumulation", [2, 3])
def test_unequal_micro_batches_equal_the_full_batch(toy_engine, toy_data, toy_workload, weighted, accumulation):
    full = train(toy_engine(toy_workload(), toy_data(weighted=weighted)))
    accumulated = train(
        toy_engine(toy_workload(), toy_data(BatchSharding(accumulation=accumulation), weighted=weighted))
    )
    assert full[0] == pytest.approx(accumulated[0], rel=1e-5)
    assert_same(full[1], accumulated[1], rtol=1e-5, atol=1e-6)


def test_update_equals_a_float64_reference(toy_engine, toy_data, toy_workload):
    data = toy_data(weighted=True)
    engine = toy_engine(toy_workload(), data)
    w1, b1, w2, b2 = (parameter.detach().double().numpy().copy() for parameter in engine.model.parameters())
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
    for parameter, array in zip(engine.model.parameters(), (w1, b1, w2, b2), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), array, rtol=2e-5, atol=1e-6)


def test_clipping_bounds_the_update(toy_engine, toy_data, toy_workload):
    engine = toy_engine(toy_workload(learning_rate=1.0), toy_data(), max_grad_norm=1e-3)
    before = torch.nn.utils.parameters_to_vector(engine.model.parameters()).detach().clone()
    next(iter(engine.train_epoch(1)))
    after = torch.nn.utils.parameters_to_vector(engine.model.parameters()).detach()
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(toy_engine, toy_data, toy_workload, precision):
    engine = toy_engine(toy_workload(), toy_data(), precision=precision)
    before = engine.evaluate().quality["fit"]
    loss, _ = train(engine, 20)
    assert np.isfinite(loss)
    assert engine.evaluate().quality["fit"] > 2 * before


def test_warm_up_does_not_change_training(toy_engine, toy_data, toy_workload):
    # Built one after the other, because engines of one process share torch's global generator.
    expected = train(toy_engine(toy_workload(dropout=0.3, batch_norm=True), toy_data()))
    warmed_up = toy_engine(toy_workload(dropout=0.3, batch_norm=True), toy_data())
    evaluated = []
    warmed_up.model.register_forward_hook(lambda model, inputs, _: evaluated.append(len(inputs[0])))
    warmed_up.warm_up()
    assert evaluated[-2:] == [8, 3]  # the shapes of the evaluation, the last batch's too
    actual = train(warmed_up)
    assert actual[0] == expected[0]
    assert_same(actual[1], expected[1])


def test_warm_up_of_captured_steps_replays_each_once(toy_engine, toy_data, toy_workload, monkeypatch):
    """Eager steps before a capture, which makes its own passes, would only take time."""
    engine, done = toy_engine(toy_workload(), toy_data()), []

    class CapturedSteps:
        def capture(self, update, micro_batches):
            engine.optimizer.step()
            done.append(("captured", id(micro_batches)))

        def replay(self, micro_batches, total_weight):
            done.append(("replayed", id(micro_batches)))
            return True

    shapes = [next(iter(engine.data.warm_up_steps())) for _ in range(2)]
    monkeypatch.setattr(engine.data, "warm_up_steps", lambda: shapes)
    monkeypatch.setattr(engine, "_captured_steps", CapturedSteps())
    monkeypatch.setattr(engine, "_update", None)
    engine.warm_up()
    assert done == [(what, id(shape)) for shape in shapes for what in ("captured", "replayed")]


@pytest.mark.parametrize(("compile_mode", "passes"), [("default", 1), ("reduce-overhead", 3)])
def test_warm_up_evaluates_again_if_the_compiler_records_graphs(
    toy_engine, toy_data, toy_workload, monkeypatch, compile_mode, passes
):
    engine = toy_engine(toy_workload(), toy_data(), compile_mode=compile_mode)
    evaluated = []
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: None)  # of this process
    monkeypatch.setattr(engine, "train_step", lambda batches: None)  # compiles nothing, which takes seconds
    monkeypatch.setattr(engine.workload, "predict", lambda model, batches: evaluated.append(len(batches)))
    engine.warm_up()
    assert evaluated == [passes, 1]  # the last batch is partial, and is not compiled


def test_engine_restored_inside_an_epoch_equals_an_uninterrupted_one(toy_engine, toy_data, toy_workload):
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
    assert_same(expected, resumed.model.state_dict())


def test_nan_loss_raises_diverged_at_the_end_of_the_block(toy_engine, toy_data, toy_workload):
    engine = toy_engine(toy_workload(), toy_data(poison=3))
    list(engine.train_epoch(1))
    with pytest.raises(Diverged, match="lower the learning rate"):
        engine.synchronize()


def test_seed_decides_the_initial_weights(toy_engine, toy_data, toy_workload):
    first, second, other_seed = (
        toy_engine(toy_workload(), toy_data(), seed=seed).model.state_dict() for seed in (1, 1, 2)
    )
    assert_same(first, second)
    assert not torch.equal(first["0.weight"], other_seed["0.weight"])


@pytest.mark.integration
def test_compiled_equals_eager(toy_engine, toy_data, toy_workload):
    _, eager = train(toy_engine(toy_workload(), toy_data()))
    _, compiled = train(toy_engine(toy_workload(), toy_data(), compile_mode="default"))
    assert_same(eager, compiled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_ranks_equal_one_rank(in_two_ranks, toy_engine, toy_data, toy_workload, weighted):
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


def test_rank_that_hangs_in_an_evaluation_is_noticed(in_two_ranks, toy_engine, toy_data, toy_workload):
    noticed = multiprocessing.get_context("fork").Event()

    def body(world, rank):
        world.hang_timeout_seconds = 0.25
        data = toy_data(BatchSharding(rank, 2))
        if rank == 1:
            data.eval_batches = lambda: noticed.wait() and []
        try:
            toy_engine(toy_workload(), data, world=world).evaluate()
        except LostRank as error:
            noticed.set()
            return str(error)

    for error in in_two_ranks(body):
        assert "did not finish its part of an evaluation within 1 s" in error


def test_batch_sharding_covers_every_sample_once():
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
