"""NCF's data: the contents of an epoch and its sharding over ranks."""

import itertools

import pytest
import torch

from timetrial.datasets.formats import movielens
from timetrial.datasets.synthetic.ratings import RatingsSpec
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.ncf import sampling
from timetrial.workloads.ncf.data import NCFData
from timetrial.workloads.ncf.sampling import IGNORED
from timetrial.workloads.ncf.synthetic import SyntheticNCFData

TASTES = RatingsSpec(num_users=60, num_items=200, num_ratings=1800, num_clusters=3)


def build(tmp_path, sharding=None, batch=512, seed=1, opened=True, data_class=NCFData, generate=TASTES):
    settings = NCFData.Settings(
        path=str(tmp_path / "ratings.csv"), cache_dir=str(tmp_path / "prepared"), generate=generate, eval_negatives=50,
        eval_batch_size=16,
    )  # fmt: skip
    data = data_class(
        settings,
        global_batch_size=batch,
        sharding=sharding or BatchSharding(),
        device=torch.device("cpu"),
        seeds=seeds.derive_streams(seed),
    )
    if opened:
        data.open()
    return data


def samples_of(steps):
    """Return (user, item, label) of every sample that counts, step by step."""
    return [
        [
            triple
            for batch in step
            for triple in zip(*(tensor.tolist() for tensor in batch.inputs[:3]), strict=True)
            if triple[2] != IGNORED
        ]
        for step in steps
    ]


def test_epoch_holds_each_positive_once_with_four_negatives(tmp_path):
    data = build(tmp_path)
    split = movielens.read_split(next((tmp_path / "prepared").glob("*.npz")))
    positives = list(zip(split.users.tolist(), split.items.tolist(), strict=True))
    samples = [triple for step in samples_of(data.train_batches(1)) for triple in step]
    assert len(samples) == data.train_size == 5 * len(positives)
    assert sorted((user, item) for user, item, label in samples if label) == sorted(positives)
    negatives = [(user, item) for user, item, label in samples if not label]
    assert not set(negatives) & set(positives)
    for user in range(data.num_users):
        num_positives = sum(positive_user == user for positive_user, _ in positives)
        assert sum(negative_user == user for negative_user, _ in negatives) == 4 * num_positives


def test_epochs_differ_and_are_reproducible(tmp_path):
    data = build(tmp_path)
    first, second = samples_of(data.train_batches(1)), samples_of(data.train_batches(2))
    assert first != second
    assert samples_of(build(tmp_path).train_batches(2)) == second
    assert samples_of(build(tmp_path, seed=2).train_batches(1)) != first


@pytest.mark.parametrize("batch", [512, 4096])
def test_epoch_is_the_same_after_others_and_after_a_stopped_one(batch, tmp_path, monkeypatch):
    """Also if a batch is gathered at a time; its first batches are made during the epoch before."""
    monkeypatch.setattr("timetrial.workloads.ncf.data._SAMPLES_AT_A_TIME", 1024)
    expected = {epoch: samples_of(build(tmp_path, batch=batch).train_batches(epoch)) for epoch in (1, 2, 3)}
    data = build(tmp_path, batch=batch)
    for epoch in (1, 2, 3, 2):
        assert samples_of(data.train_batches(epoch)) == expected[epoch]
    stopped = iter(data.train_batches(3))
    next(stopped)
    del stopped
    assert samples_of(data.train_batches(3)) == expected[3]


def test_ranks_and_micro_batches_partition_the_epoch(tmp_path):
    whole = [sorted(step) for step in samples_of(build(tmp_path).train_batches(3))]
    of_ranks = []
    for rank in range(3):
        data = build(tmp_path, BatchSharding(rank, 3, 2))
        first, steps = data.own_users.start, samples_of(data.train_batches(3))
        of_ranks.append([[(user + first, item, label) for user, item, label in step] for step in steps])
    combined = [sorted(itertools.chain(*parts)) for parts in zip(*of_ranks, strict=True)]
    assert combined == whole


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_users_of_their_own(tmp_path, ranks):
    """A batch of a rank has as many samples as those users can have, not as many as the global batch."""
    many = RatingsSpec(num_users=400, num_items=60, num_ratings=9000, num_clusters=3)
    for rank in range(ranks):
        data = build(tmp_path, BatchSharding(rank, ranks), batch=4096, generate=many)
        bounds = data.sharded_rows()["mlp_user.weight"]
        assert (bounds[0], bounds[-1], len(bounds)) == (0, data.num_users, ranks + 1)
        assert data.own_users == range(bounds[rank], bounds[rank + 1])
        steps = list(data.train_batches(1))
        numbers = set(range(len(data.own_users)))
        assert {user for step in samples_of(steps) for user, _, _ in step} == numbers
        assert {user for batch in data.eval_batches() for user in batch.inputs[0].tolist()} == numbers
        samples = sum(len(step) for step in samples_of(steps))
        assert abs(samples - data.train_size / ranks) <= 5 * data.num_items
        ((first,),) = data.warm_up_steps()
        assert len(steps[0][0].inputs[0]) == len(first.inputs[0]) < 0.7 * 4096


def test_more_ranks_than_users_are_an_error(tmp_path):
    few = RatingsSpec(num_users=3, num_items=100, num_ratings=90, num_clusters=1)
    with pytest.raises(ConfigurationError, match="3 users cannot be divided over 4 GPUs"):
        build(tmp_path, BatchSharding(0, 4), generate=few)


def test_samples_that_do_not_fit_are_an_error(tmp_path, monkeypatch):
    data = build(tmp_path, BatchSharding(0, 2))
    monkeypatch.setattr(data, "_micro_batch_sizes", lambda samples: [samples // 4])
    list(data.train_batches(1))
    with pytest.raises(RuntimeError, match="more than were expected"):
        list(data.eval_batches())


def test_weights_are_those_of_the_global_batch(tmp_path):
    for step in build(tmp_path, BatchSharding(0, 3, 2)).train_batches(1):
        assert len(step) == 2
        assert len({(batch.global_samples, batch.global_weight) for batch in step}) == 1
    last = step[0]
    assert last.global_samples == build(tmp_path).train_size % 512


def test_ranks_partition_the_evaluation_users(tmp_path):
    users, fixed = [], []
    for rank in range(3):
        data = build(tmp_path, BatchSharding(rank, 3))
        for batch in data.eval_batches():
            users += [data.own_users.start + user for user in batch.inputs[0].tolist()]
            assert batch.inputs[1].shape[1] == 51
        fixed.append([batch.inputs[1].clone() for batch in data.eval_batches()])
        assert all(
            torch.equal(items, batch.inputs[1]) for items, batch in zip(fixed[-1], data.eval_batches(), strict=True)
        )
    assert users == list(range(60))


def test_synthetic_batches_have_the_shapes_of_real_ones(tmp_path):
    data = build(tmp_path, BatchSharding(1, 2, 2))
    real, synthetic = next(iter(data.train_batches(1))), next(data.warm_up_steps())
    for real_batch, synthetic_batch in zip(real, synthetic, strict=True):
        assert [tensor.shape for tensor in real_batch.inputs] == [tensor.shape for tensor in synthetic_batch.inputs]
        assert [tensor.dtype for tensor in real_batch.inputs] == [tensor.dtype for tensor in synthetic_batch.inputs]
    real_batch, synthetic_batch = next(iter(data.eval_batches())), next(data.warm_up_eval_batches())
    assert [tensor.shape for tensor in real_batch.inputs] == [tensor.shape for tensor in synthetic_batch.inputs]


@pytest.mark.parametrize("batch", [512, 100_000])
def test_warm_up_gathers_in_the_shapes_of_an_epoch(tmp_path, monkeypatch, batch):
    shapes, gather = set(), sampling.gather_batches
    monkeypatch.setattr(
        sampling,
        "gather_batches",
        lambda samples, *rest, **own: [shapes.add(samples.shape), gather(samples, *rest, **own)][1],
    )
    data = build(tmp_path, BatchSharding(1, 2), batch=batch)
    list(data.warm_up_steps())
    warm = set(shapes)
    shapes.clear()
    list(data.train_batches(1))
    assert shapes == warm


def test_sizes_and_synthetic_batches_come_from_the_manifest(tmp_path):
    opened = build(tmp_path)
    for path in (tmp_path / "prepared").glob("*.npz"):
        path.write_bytes(b"")
    data = build(tmp_path, opened=False)
    assert (data.train_size, data.eval_size, data.num_items) == (opened.train_size, 60, opened.num_items)
    assert next(data.warm_up_steps())[0].weight == 512
    assert next(data.warm_up_eval_batches()).weight == 16


def test_synthetic_ratings_are_distinct_and_need_no_file(tmp_path):
    data = build(tmp_path, data_class=SyntheticNCFData)
    assert (data.num_users, data.num_items, data.train_size) == (60, 200, 5 * 60 * 29)
    samples = [triple for step in samples_of(data.train_batches(1)) for triple in step]
    positives = [(user, item) for user, item, label in samples if label]
    held_out = [
        (user, int(items[-1]))
        for batch in data.eval_batches()
        for user, items in zip(*map(torch.Tensor.tolist, batch.inputs[:2]), strict=True)
    ]
    assert len(set(positives + held_out)) == len(positives) + len(held_out) == 60 * 30
    assert not list(tmp_path.iterdir())


def test_synthetic_ratings_are_as_many_as_those_of_movielens_20m(tmp_path):
    data = build(tmp_path, data_class=SyntheticNCFData, generate=None, opened=False)
    assert (data.num_users, data.num_items) == (138_493, 26_744)
    assert abs(data.train_size / 5 + data.num_users - 20_000_263) < 138_493
