"""Both translators' batches: equal for any ranks and micro-batches, and every sentence once."""

import itertools

import numpy as np
import pytest
import torch

from timetrial.datasets.synthetic import language
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.training.seeds import derive_streams
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.gnmt.data import Sentences
from timetrial.workloads.transformer import data as data_of_tokens
from timetrial.workloads.transformer.data import TokenBatches

GRAMMAR = language.Grammar(1500, 40, nouns=40, verbs=20, adjectives=20, adverbs=10)


@pytest.fixture
def build(tmp_path):
    def built(kind, batch, *, sharding=None, seed=1, device="cpu", **settings):
        chosen = {
            "source": [f"{tmp_path}/toy/train.source"],
            "target": [f"{tmp_path}/toy/train.target"],
            "test_source": f"{tmp_path}/toy/test.source",
            "test_target": f"{tmp_path}/toy/test.target",
            "prepared": f"{tmp_path}/prepared",
            "max_length": 40,
            "vocabulary_size": 300,
            "generate": GRAMMAR,
            "workers": 1,
            "eval_batch_size": 16,
        }
        return kind(
            kind.Settings(**chosen | settings),
            global_batch_size=batch,
            sharding=sharding or BatchSharding(),
            device=torch.device(device),
            seeds=derive_streams(seed),
        )

    return built


def said(data, batch):
    """(source, target) of a micro-batch as sets of tuples of ids."""
    content = batch.inputs
    if isinstance(data, TokenBatches):
        sides = []
        for side in content:
            ends = side.bounds.tolist()
            sides.append([tuple(side.ids[a:b].tolist()) for a, b in itertools.pairwise(ends)])
        return sorted(pair for pair in zip(*sides, strict=True) if any(pair[0]))
    sides = []
    for side, extra in ((content.source, None), (content.target, content.labels)):
        padded = torch.zeros(content.lengths.shape[1] * side.longest, dtype=torch.int64)
        padded[side.places] = side.ids
        if extra is not None:
            labels = torch.zeros_like(padded)
            labels[side.places] = extra
            sides.append(labels.view(-1, side.longest).tolist())
        sides.append(padded.view(-1, side.longest).tolist())
    rows = zip(*sides, strict=True)
    return sorted(tuple(tuple(number for number in row if number) for row in (a, c, b)) for a, b, c in rows)


KINDS = [(Sentences, 64), (TokenBatches, 700)]


@pytest.mark.parametrize(("kind", "batch"), KINDS)
def test_ranks_and_micro_batches_share_the_same_global_batches(build, kind, batch):
    alone = build(kind, batch)
    parts = [build(kind, batch, sharding=BatchSharding(rank, 2, 2)) for rank in range(2)]
    together = zip(*(part.train_batches(3) for part in parts), strict=True)
    steps = 0
    for (whole,), ranks in zip(alone.train_batches(3), together, strict=True):
        micro = [(part, batch) for part, batches in zip(parts, ranks, strict=True) for batch in batches]
        assert len(micro) == 4
        assert sorted(pair for part, one in micro for pair in said(part, one)) == said(alone, whole)
        assert sum(one.weight for _, one in micro) == whole.weight == whole.global_weight
        assert {(one.global_samples, one.global_weight, one.global_tokens) for _, one in micro} == {
            (whole.global_samples, whole.global_weight, whole.global_tokens)
        }
        steps += 1
    assert abs(steps - alone.steps_per_epoch) <= 1


@pytest.mark.parametrize(("kind", "batch"), KINDS)
def test_an_epoch_has_each_pair_once_and_another_order_each_time(build, kind, batch):
    data = build(kind, batch)
    orders = [np.concatenate(data.plan(epoch)) for epoch in (1, 2)]
    for order in orders:
        assert len(np.unique(order)) == len(order)
        assert len(order) >= 0.8 * len(data._kept)
    assert not np.array_equal(*(order[:200] for order in orders))
    assert all(np.array_equal(*pair) for pair in zip(data.plan(1), build(kind, batch).plan(1), strict=True))
    assert not np.array_equal(np.concatenate(build(kind, batch, seed=2).plan(1)), orders[0])


def test_sentences_of_a_batch_are_of_one_bucket_and_as_many_as_asked(build):
    data = build(Sentences, 64)
    for numbers in data.plan(1):
        assert len(numbers) == 64
        assert len(np.unique((data.lengths[:, numbers].max(0) - 1) // 8)) == 1  # a fifth of 40


@pytest.mark.parametrize(("longest", "width"), [(50, 10), (75, 15), (23, 5)])
def test_there_are_five_buckets_whatever_the_longest(build, longest, width):
    data = build(Sentences, 64, max_length=longest)
    data.lengths = np.array([range(3, longest + 1), [3] * (longest - 2)])
    assert data._buckets().tolist() == [(length - 1) // width for length in range(3, longest + 1)]
    assert data._buckets().max() == 4


def test_tokens_of_a_batch_are_as_many_as_asked_and_no_more(build):
    data = build(TokenBatches, 700)
    totals = np.array([data.lengths[:, numbers].sum(1).max() for numbers in data.plan(1)])
    assert totals.max() <= 700
    assert totals[:-1].min() > 700 - data.lengths.max()


def test_batches_of_one_size_are_what_a_compiler_gets(build, monkeypatch):
    """A device for which kernels are compiled; meta tensors stand for its memory, for which nothing can be pinned."""
    monkeypatch.setattr(data_of_tokens, "uploaded", lambda array, device: torch.from_numpy(array).to(device))
    data = build(TokenBatches, 700, sharding=BatchSharding(0, 2, 1))
    data._device = torch.device("meta")  # only sizes are looked at
    fill = []
    for numbers in data.plan(1)[:-1]:
        part = data._deal(numbers)[0]
        used = data.lengths[:, part].sum(1)
        try:
            shapes = {tuple(side.ids.shape) for side in data.pack(part, data._random_sides())}
        except NotImplementedError:
            pytest.skip("no repeat_interleave without memory")
        fill.append((shapes, used))
    assert {shape for shapes, _ in fill for shape in shapes} == {(384,)}
    assert data.padding() == pytest.approx(1 - np.mean([used.sum() for _, used in fill]) / (2 * 384), abs=0.02)
    assert data.mlperf_params()["timetrial_padding"] == pytest.approx(data.padding(), abs=1e-4)


def test_parts_weigh_alike(build):
    data = build(TokenBatches, 2000, sharding=BatchSharding(0, 4, 1))
    for numbers in data.plan(1)[:-1]:
        weights = []
        for rank in range(4):
            data._share = BatchSharding(rank, 4, 1)
            weights.append(data.lengths[:, data._deal(numbers)[0]].sum())
        assert max(weights) - min(weights) <= 2 * data.lengths.max()


@pytest.mark.parametrize(("kind", "batch"), KINDS)
def test_the_test_set_is_shared_out_once(build, kind, batch):
    found = []
    for rank in range(3):
        for part in build(kind, batch, sharding=BatchSharding(rank, 3, 1)).eval_batches():
            _, numbers = part.inputs
            assert len(numbers) <= 16
            found += numbers.tolist()
    assert sorted(found) == list(range(40))


@pytest.mark.parametrize(("kind", "batch"), KINDS)
def test_synthetic_batches_have_the_shapes_of_the_first_step(build, kind, batch):
    data = build(kind, batch)
    (first,), (synthetic,) = next(iter(data.train_batches(1))), data.synthetic_train_batches()
    shapes = [
        [tuple(leaf.shape) for leaf in torch.utils._pytree.tree_leaves(tuple(one.inputs)) if hasattr(leaf, "shape")]
        for one in (first, synthetic)
    ]
    assert shapes[0] == shapes[1]
    assert said(data, first) != said(data, synthetic)
    assert first.weight == synthetic.weight


def test_what_cannot_be_is_refused(build):
    with pytest.raises(ConfigurationError, match="No pair has at most 3 pieces"):
        build(Sentences, 64, max_length=3)
    with pytest.raises(ConfigurationError, match="No bucket of lengths holds 5000 pairs"):
        build(Sentences, 5000)
    with pytest.raises(ConfigurationError, match=r"recipe.global_batch_size=10 is less than one pair"):
        build(TokenBatches, 10).plan(1)
    with pytest.raises(ValueError, match="as many files each"):
        Sentences.Settings(["a"], [], "b", "c", "d", 50, 100)
