"""An embedding whose rows are divided over two ranks, against one rank that has them all."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from timetrial.runner.training.workload import Batch, BatchSharding

ROWS, BOUNDS = 10, [0, 4, 10]


class Rows(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.Embedding(ROWS, 3)
        self.layer = nn.Linear(3, 1)
        self.table = nn.Embedding.from_pretrained(self.table.weight.detach()[rows], freeze=False)

    def forward(self, ids, targets):
        return (self.layer(self.table(ids))[:, 0] - targets).square().sum()


@pytest.fixture
def build(toy_engine, toy_data):
    """build(world, rank, **options): an engine whose rank has the samples of its own rows."""

    class Data(toy_data):
        def sharded_rows(self):
            return {"table.weight": BOUNDS} if self.sharding.ranks > 1 else {}

        def train_batches(self, epoch):
            ids = torch.arange(ROWS).repeat(3)
            targets = torch.linspace(-1, 1, len(ids)) * epoch
            own = (ids >= self.rows.start) & (ids < self.rows.stop)
            for part in (slice(0, 15), slice(15, 30)):
                mine, wanted = ids[part][own[part]] - self.rows.start, targets[part][own[part]]
                yield [Batch((mine, wanted), len(mine), 15, 15.0)]

    class Workload:
        capturable = False

        def __init__(self, rows):
            self.rows = rows

        def build_model(self):
            return Rows(self.rows)

        def build_optimizer(self, model, steps_per_epoch):
            optimizer = torch.optim.Adam(model.parameters(), 0.05)
            return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

        def compute_loss(self, model, batch):
            return model(*batch.inputs)

    def build(world=None, rank=None, **options):
        sharding = BatchSharding() if world is None else BatchSharding(rank, 2)
        data = Data(sharding)
        data.rows = slice(0, ROWS) if world is None else slice(*BOUNDS[rank : rank + 2])
        return toy_engine(Workload(data.rows), data, world=world, **options)

    return build


def train(engine, *epochs):
    for epoch in epochs:
        list(engine.train_epoch(epoch))
    return engine.synchronize().loss


def flatten(state):
    """Return all weights and moments as arrays."""
    moments = {
        f"{number} {name}": value.numpy()
        for number, values in state["optimizer"]["state"].items()
        for name, value in values.items()
    }
    return {name: value.numpy() for name, value in state["model"].items()} | moments


@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
def test_training_equals_that_of_one_rank(build, in_two_ranks, max_grad_norm):
    alone = build(max_grad_norm=max_grad_norm)
    loss = train(alone, 1, 2, 3)
    expected = flatten(alone.state_dict())
    assert expected["table.weight"].shape == (ROWS, 3)

    def body(world, rank):
        engine = build(world, rank, max_grad_norm=max_grad_norm)
        assert engine.model.table.weight.shape[0] == BOUNDS[rank + 1] - BOUNDS[rank]
        return train(engine, 1, 2, 3), flatten(engine.state_dict())

    for found_loss, found in in_two_ranks(body):
        assert found_loss == pytest.approx(loss, rel=1e-5)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_resumed_ranks_continue_to_the_bit(build, in_two_ranks):
    def body(world, rank):
        whole = build(world, rank)
        train(whole, 1, 2)
        saved = copy.deepcopy(whole.state_dict())
        train(whole, 3)
        resumed = build(world, rank)
        train(resumed, 1)  # its optimizer has state of its own
        resumed.load_state_dict(saved)
        train(resumed, 3)
        return flatten(whole.state_dict()), flatten(resumed.state_dict())

    for expected, found in in_two_ranks(body):
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_gradient_that_is_not_finite_reaches_all_ranks(build, in_two_ranks):
    def body(world, rank):
        engine = build(world, rank)
        found = []
        for value in (1e30, float("inf")):
            engine.model.table.weight.grad = torch.full_like(engine.model.table.weight, value if rank else 1.0)
            found.append(float(engine.replication._shards.nan_unless_finite()))
        return found

    for finite, infinite in in_two_ranks(body):
        assert finite == 0
        assert np.isnan(infinite)
