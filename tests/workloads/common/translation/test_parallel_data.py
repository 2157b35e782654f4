"""Batches of both translation workloads: the same for any ranks and micro-batches, with every sentence once."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from timetrial.datasets.synthetic import language
from timetrial.datasets.text.prepared_corpus import LengthCount
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.gnmt.data import GNMTData
from timetrial.workloads.transformer import data as transformer_data
from timetrial.workloads.transformer.data import TransformerData

OTHER = language.TranslationSpec(300, 40, num_nouns=40, num_verbs=20, num_adjectives=20, num_adverbs=10, seed=5)


def unpack_pairs(data, batch):
    """Return the sentence pairs of a micro-batch, sorted: (source, target), or (source, decoder inputs, labels)."""
    inputs = batch.inputs
    if isinstance(data, TransformerData):
        sides = []
        for side in inputs:
            edges = itertools.pairwise(side.cu_seqlens.tolist())
            sides.append([tuple(side.ids[start:stop].tolist()) for start, stop in edges])
        return sorted(pair for pair in zip(*sides, strict=True) if any(pair[0]))
    num_sentences = inputs.lengths.shape[1]
    rows = []
    for side, ids in (
        (inputs.source, inputs.source.ids),
        (inputs.target, inputs.target.ids),
        (inputs.target, inputs.labels),
    ):
        padded = torch.zeros(num_sentences * side.max_length, dtype=torch.int64)
        padded[side.padded_indices] = ids
        rows.append(padded.view(num_sentences, -1).tolist())
    return sorted(tuple(tuple(number for number in row if number) for row in pair) for pair in zip(*rows, strict=True))


DATA_CLASSES = [(GNMTData, 64), (TransformerData, 700)]


@pytest.mark.parametrize(("data_class", "batch_size"), DATA_CLASSES)
def test_ranks_and_micro_batches_partition_the_same_global_batches(build, data_class, batch_size):
    unsharded = build(data_class, batch_size)
    ranks = [build(data_class, batch_size, sharding=BatchSharding(rank, 2, 2)) for rank in range(2)]
    sharded_steps = zip(*(rank.train_batches(3) for rank in ranks), strict=True)
    steps = 0
    for (whole,), of_ranks in zip(unsharded.train_batches(3), sharded_steps, strict=True):
        micro_batches = [(rank, batch) for rank, batches in zip(ranks, of_ranks, strict=True) for batch in batches]
        assert len(micro_batches) == 4
        pairs = sorted(pair for rank, batch in micro_batches for pair in unpack_pairs(rank, batch))
        assert pairs == unpack_pairs(unsharded, whole)
        assert sum(batch.weight for _, batch in micro_batches) == whole.weight == whole.global_weight
        assert {(batch.global_samples, batch.global_weight, batch.global_tokens) for _, batch in micro_batches} == {
            (whole.global_samples, whole.global_weight, whole.global_tokens)
        }
        steps += 1
    assert abs(steps - unsharded.steps_per_epoch) <= 1


@pytest.mark.parametrize(("data_class", "batch_size"), DATA_CLASSES)
def test_epochs_hold_each_pair_at_most_once_in_different_orders(build, data_class, batch_size):
    data = build(data_class, batch_size)
    orders = [np.concatenate(data.plan_batches(epoch)) for epoch in (1, 2)]
    for order in orders:
        assert len(np.unique(order)) == len(order)
        assert len(order) >= 0.8 * len(data._kept)
    assert not np.array_equal(*(order[:200] for order in orders))
    assert all(
        np.array_equal(*pair)
        for pair in zip(data.plan_batches(1), build(data_class, batch_size).plan_batches(1), strict=True)
    )
    assert not np.array_equal(np.concatenate(build(data_class, batch_size, seed=2).plan_batches(1)), orders[0])


def test_gnmt_batches_are_full_and_of_one_length_bucket(build):
    data = build(GNMTData, 64)
    for numbers in data.plan_batches(1):
        assert len(numbers) == 64
        assert len(np.unique(np.minimum(data.lengths[:, numbers].max(0) // 8, 4))) == 1  # buckets of 40 / 5 tokens


@pytest.mark.parametrize(("max_length", "bucket_width"), [(50, 10), (75, 15), (23, 5)])
def test_there_are_five_buckets_for_any_max_length(build, max_length, bucket_width):
    """As in the reference, a length that is a multiple of the width begins a bucket, but the last holds the maximum."""
    data = build(GNMTData, 64, max_length=max_length)
    buckets = data._bucket(np.arange(3, max_length + 1)).tolist()
    assert buckets == [min(length // bucket_width, 4) for length in range(3, max_length + 1)]
    assert buckets[-2:] == [4, 4]


@pytest.mark.parametrize(("data_class", "batch_size"), DATA_CLASSES)
@pytest.mark.parametrize("max_length", [20, 40])
def test_sizes_are_known_from_the_manifest_alone(build, data_class, batch_size, max_length):
    data = build(data_class, batch_size, max_length=max_length, opened=False)
    sizes, params = (data.train_size, data.steps_per_epoch, data.eval_size, data.vocab_size), data.mlperf_params()
    assert not hasattr(data, "lengths")
    data.open()
    batches = data.plan_batches(1)
    assert sizes[2:] == (len(data.test_lengths), len(data.vocabulary))
    assert params["timetrial_dropped_long_pairs"] == 1500 - params["timetrial_dropped_pairs"] - data.lengths.shape[1]
    if data_class is GNMTData:
        assert sizes[:2] == (sum(map(len, batches)), len(batches))
    else:
        assert sizes[0] == data.lengths.shape[1]
        assert abs(sizes[1] - len(batches)) <= 2
    assert params["timetrial_dropped_long_pairs"] > 0


def test_transformer_batches_are_filled_up_to_the_token_limit(build):
    data = build(TransformerData, 700)
    totals = np.array([data.lengths[:, numbers].sum(1).max() for numbers in data.plan_batches(1)])
    assert totals.max() <= 700
    assert totals[:-1].min() > 700 - data.lengths.max()


@pytest.mark.parametrize(("batch_size", "parts"), [(700, 2), (6000, 1), (6000, 2)])
def test_batches_on_devices_have_one_padded_size_of_each_side(build, monkeypatch, batch_size, parts):
    """Meta tensors stand for a device; its memory cannot be pinned."""
    monkeypatch.setattr(transformer_data, "copy_to_device", lambda array, device: torch.from_numpy(array).to(device))
    data = build(TransformerData, batch_size, sharding=BatchSharding(0, parts, 1))
    data._device = torch.device("meta")  # only sizes are compared
    sizes, used = [], []
    for numbers in data.plan_batches(1)[:-1]:
        part = numbers[data._partition(data.lengths[:, numbers])[0]]
        used.append(data.lengths[:, part].sum())
        try:
            sizes.append([len(side.ids) for side in data.pack(part, data._random_corpus(data.lengths))])
        except NotImplementedError:
            pytest.skip("repeat_interleave does not support meta tensors")
    assert sizes == [list(data._padded_sizes())] * len(sizes)
    assert min(sizes[0]) < max(sizes[0]) or batch_size == 700
    assert data.padding_fraction() == pytest.approx(1 - np.mean(used) / sum(sizes[0]), abs=0.02)
    assert data.padding_fraction() < {700: 0.2, 6000: 0.08}[batch_size]
    assert data.mlperf_params()["timetrial_padding"] == pytest.approx(data.padding_fraction(), abs=1e-4)


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize(("ranks", "accumulation"), [(2, 1), (4, 1), (2, 4)])
def test_parts_of_a_batch_have_equal_numbers_of_tokens(build, ranks, accumulation, longer):
    """Source and target of a pair differ in length by some 20%, as WMT's do."""
    data, generator = build(TransformerData, 4000), np.random.default_rng(1)
    data._longer_side = longer
    apart = []
    for pairs in range(50, 4000, 150):
        source = np.exp(generator.normal(3.2, 0.55, pairs))
        target = source * np.exp(generator.normal(0.05 if longer else -0.05, 0.2, pairs))
        lengths = np.stack([source, target]).clip(2, 64).astype(np.int64)
        parts = []
        for rank in range(ranks):
            data._sharding = BatchSharding(rank, ranks, accumulation)
            parts += data._partition(lengths)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(pairs))
        tokens = np.array([lengths[:, part].sum(1) for part in parts])
        apart.append(np.ptp(tokens, 0)[[longer, 1 - longer]])
    assert np.max(apart, 0)[0] <= 64
    assert np.mean(apart, 0)[0] < 16
    assert np.mean(apart, 0)[1] < 160


def test_ranks_get_similar_numbers_of_tokens(build):
    data = build(TransformerData, 2000, sharding=BatchSharding(0, 4, 1))
    for numbers in data.plan_batches(1)[:-1]:
        tokens = []
        for rank in range(4):
            data._sharding = BatchSharding(rank, 4, 1)
            lengths = data.lengths[:, numbers]
            tokens.append(lengths[:, data._partition(lengths)[0]].sum())
        assert max(tokens) - min(tokens) <= 2 * data.lengths.max()


@pytest.mark.parametrize("ratio", [-0.02, 0, 0.05])
@pytest.mark.parametrize(("batch_size", "ranks"), [(16_000, 2), (28_032, 8), (28_096, 4)])
def test_all_parts_fit_into_the_padded_size_of_each_side(build, batch_size, ranks, ratio):
    """Sides of nearly equal and of other lengths; a part that is too large would be trained uncompiled."""
    data, generator = build(TransformerData, batch_size, sharding=BatchSharding(0, ranks, 1)), np.random.default_rng(2)
    source = np.exp(generator.normal(3.15, 0.55, 50_000))
    data.lengths = (
        np.stack([source, source * np.exp(generator.normal(ratio, 0.2, 50_000))]).clip(2, 40).astype(np.int64)
    )
    data._counts, data._num_kept = [LengthCount(0, 50_000, *map(int, data.lengths.sum(1)))], 50_000
    data._longer_side = int(np.diff(data._num_tokens())[0] > 0)
    data._device = torch.device("meta")
    sizes, used = data._padded_sizes(), []
    for numbers in data.plan_batches(1)[:-1]:
        for rank in range(ranks):
            data._sharding = BatchSharding(rank, ranks, 1)
            used.append(data.lengths[:, numbers[data._partition(data.lengths[:, numbers])[0]]].sum(1))
    assert np.all(np.max(used, 0) <= sizes)
    assert np.sum(used) > 0.93 * len(used) * sum(sizes)


@pytest.mark.parametrize(("data_class", "batch_size"), DATA_CLASSES)
def test_ranks_partition_the_test_set(build, data_class, batch_size):
    evaluated = []
    for rank in range(3):
        for batch in build(data_class, batch_size, sharding=BatchSharding(rank, 3, 1)).eval_batches():
            _, numbers = batch.inputs
            assert len(numbers) <= 16
            evaluated += numbers.tolist()
    assert sorted(evaluated) == list(range(40))


def test_warm_up_of_gnmt_fills_a_batch_of_the_longest_bucket(build):
    data = build(GNMTData, 64, opened=False)
    ((synthetic,),) = data.warm_up_steps()
    assert synthetic.weight == synthetic.global_samples == 64
    source, target = synthetic.inputs.lengths.tolist()
    assert set(source) == {length + 1 for length in target} == set(range(32, 41))  # the decoder has no end token


@pytest.mark.parametrize("ranks", [1, 2])
def test_warm_up_of_transformer_has_the_shapes_of_every_full_batch(build, monkeypatch, ranks):
    """On a GPU all batches have one shape, which is compiled before the clock starts.

    The data say that they are on a GPU, but stay on the CPU: only shapes are compared.
    """
    data = build(TransformerData, 2000, sharding=BatchSharding(0, ranks, 1))
    monkeypatch.setattr(TransformerData, "_padded_sizes", lambda self: (1792 // ranks, 2048 // ranks))

    def shapes(batch):
        return [tuple(leaf.shape) if hasattr(leaf, "shape") else leaf for side in batch.inputs for leaf in side]

    ((synthetic,),) = data.warm_up_steps()
    of_steps = {str(shapes(batch)) for (batch,) in data.train_batches(1)}
    assert of_steps == {str(shapes(synthetic))}


@pytest.mark.parametrize("ranks", [1, 2])
def test_warm_up_of_padded_gnmt_has_the_shapes_of_every_batch(build, ranks):
    """One for each bucket that fills a batch: no other shape is met, and none is captured in vain."""
    data = build(GNMTData, 32, sharding=BatchSharding(0, ranks, 1), pad_to_bucket=True)

    def shapes(steps):
        flat = (pytree.tree_leaves(batch.inputs) for (batch,) in steps)
        return {tuple(tuple(leaf.shape) if hasattr(leaf, "shape") else leaf for leaf in leaves) for leaves in flat}

    found = shapes(data.train_batches(1))
    assert len(found) > 1
    assert found == shapes(data.warm_up_steps())
    tokens = sum(data.lengths[:, numbers].sum() for numbers in data.plan_batches(1))
    positions = sum(
        batch.inputs.lengths.shape[1] * 2 * (batch.inputs.source.max_length) for (batch,) in data.train_batches(1)
    )
    assert data.padding_fraction() == pytest.approx(1 - tokens / ranks / positions, abs=0.03)


@pytest.mark.parametrize(("data_class", "batch_size"), DATA_CLASSES)
def test_warm_up_steps_do_not_depend_on_the_data(build, data_class, batch_size):
    """Equal for data of other lengths."""
    lengths = [build(data_class, batch_size, opened=False, **g).invented_lengths() for g in ({}, {"generate": OTHER})]
    assert np.array_equal(*lengths)
    (synthetic,) = build(data_class, batch_size, opened=False).warm_up_eval_batches()
    assert synthetic.weight == 2


def test_rejects_settings_without_any_batch(build):
    with pytest.raises(ConfigurationError, match="No pair has at most 3 tokens"):
        build(GNMTData, 64, max_length=3, opened=False)
    with pytest.raises(ConfigurationError, match="No length bucket holds 5000 pairs"):
        build(GNMTData, 5000, opened=False)
    with pytest.raises(ConfigurationError, match=r"recipe.global_batch_size=10 is less than one pair"):
        build(TransformerData, 10).plan_batches(1)
    with pytest.raises(ValueError, match="as many files each"):
        GNMTData.Settings(["a"], [], "b", "c", "d", 50, 100)
