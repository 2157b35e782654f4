"""What differs between replicas: running statistics, averaged for an evaluation and kept in checkpoints."""

import io

import numpy as np
import pytest
import torch

from timetrial.runner.core import execution_paths
from timetrial.runner.training import all_reduce
from timetrial.runner.training.workload import BatchSharding


@pytest.fixture
def build_replica(toy_engine, toy_data, toy_workload):
    """Build the engine of a rank of two, with dropout and a batch norm: build_replica(world, rank, seed=1)."""

    def build(world, rank, seed=1):
        workload = toy_workload(dropout=0.3, batch_norm=True)
        return toy_engine(workload, toy_data(BatchSharding(rank, 2), samples=48), world=world, seed=seed)

    return build


def test_batch_norm_is_averaged_over_ranks_before_evaluation(in_two_ranks, build_replica):
    def body(world, rank):
        engine = build_replica(world, rank)
        list(engine.train_epoch(1))
        local = engine.model[1].running_mean.clone()
        engine.evaluate()
        return local.numpy(), engine.model[1].running_mean.numpy()

    (local_0, averaged_0), (local_1, averaged_1) = in_two_ranks(body)
    assert not np.allclose(local_0, local_1)
    np.testing.assert_allclose(averaged_0, (local_0 + local_1) / 2, rtol=1e-6)
    np.testing.assert_array_equal(averaged_0, averaged_1)


def test_over_fast_links_the_same_sums_are_exchanged_after_the_backward_pass(in_two_ranks, build_replica):
    def body(world, rank):
        paths, weights = [], []
        # GB/s; None: measured, and slower among processes of a host
        for bandwidth, deterministic in ((None, False), (300.0, False), (300.0, True)):
            world.bus_gb_s = bandwidth
            torch.use_deterministic_algorithms(deterministic)
            engine = build_replica(world, rank)
            list(engine.train_epoch(1))
            paths.append(execution_paths.taken()["gradient_exchange"])
            weights.append(torch.cat([weight.detach().flatten() for weight in engine.model.parameters()]).numpy())
        return paths, weights

    for paths, (slow, fast, deterministic) in in_two_ranks(body):
        assert paths == ["in the backward pass", "after the backward pass", "in the backward pass"]
        np.testing.assert_allclose(slow, fast, rtol=1e-6)
        np.testing.assert_array_equal(slow, deterministic)


def test_the_bus_bandwidth_is_measured_once_and_the_same_on_all_ranks(in_two_ranks):
    def body(world, rank):
        return [all_reduce.measure_once(world, torch.device("cpu")) for _ in range(2)]

    (first, again), other = in_two_ranks(body)
    assert first == again > 0
    assert other == [first, first]


def test_no_other_buffer_is_averaged(in_two_ranks, toy_engine, toy_data, toy_workload):
    """Constants would change in rounding where the number of ranks is no power of two."""

    class WithConstant(toy_workload):
        def build_model(self):
            model = super().build_model()
            model.register_buffer("constant", torch.full((3,), 0.1))
            return model

    def body(world, rank):
        engine = toy_engine(WithConstant(batch_norm=True), toy_data(BatchSharding(rank, 2)), world=world)
        engine.model.constant += rank
        engine.evaluate()
        return engine.model.constant.tolist()

    constants = in_two_ranks(body)
    assert constants[0] == pytest.approx([0.1] * 3)
    assert constants[1] == pytest.approx([1.1] * 3)


def test_resume_within_an_epoch_equals_an_uninterrupted_run_to_the_bit(in_two_ranks, build_replica):
    """Each rank's running statistics too, which its own batches have made, and the generators of dropout."""

    def tensors(engine):
        return {name: value.clone().numpy() for name, value in engine.model.state_dict().items()}

    def body(world, rank):
        whole = build_replica(world, rank)
        for epoch in (1, 2):
            list(whole.train_epoch(epoch))
        uninterrupted = tensors(whole)
        stopped = build_replica(world, rank)
        list(stopped.train_epoch(1))
        next(steps := stopped.train_epoch(2)), next(steps)
        torch.save(stopped.state_dict(), memory := io.BytesIO())
        memory = io.BytesIO(world.broadcast(memory.getvalue()))  # rank 0 writes the checkpoint, and all ranks read it
        resumed = build_replica(world, rank, seed=2)
        resumed.load_state_dict(torch.load(memory, weights_only=True))
        assert sum(1 for _ in resumed.train_epoch(2)) == 1
        return uninterrupted, tensors(resumed)

    ranks = in_two_ranks(body)
    for uninterrupted, resumed in ranks:
        for name, value in uninterrupted.items():
            np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    (first, _), (second, _) = ranks
    assert not np.allclose(first["1.running_mean"], second["1.running_mean"])
    np.testing.assert_array_equal(first["0.weight"], second["0.weight"])
