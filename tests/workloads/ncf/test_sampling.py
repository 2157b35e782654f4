"""Sampling: bitset, batches, evaluation sets and hits, against plain Python."""

import pytest
import torch

from timetrial.workloads.ncf import sampling
from timetrial.workloads.ncf.counter_based import contains

USERS, ITEMS = 30, 41
CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_pairs(density=0.3, seed=0):
    """Return unique pairs sorted by user; each user has rated some items and no user all of them."""
    rated = torch.rand(USERS, ITEMS, generator=generator(seed)) < density
    rated[:, 0], rated[:, 1] = True, False
    users, items = rated.nonzero(as_tuple=True)
    return rated, users.int(), items.int()


def test_bitset_holds_exactly_the_pairs():
    rated, users, items = make_pairs()
    bits = sampling.build_bitset(users, items, USERS, ITEMS)
    contained = contains(bits, torch.arange(USERS)[:, None], torch.arange(ITEMS), ITEMS)
    assert bits.numel() == -(-USERS * ITEMS // 8)
    assert torch.equal(contained, rated)


def test_rejects_user_who_rated_every_item():
    with pytest.raises(ValueError, match="rated all 3 items"):
        sampling.build_bitset(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 2]), 2, 3)


@pytest.mark.parametrize(("samples", "size"), [(1000, 64), (1000, 1000), (7, 10), (3000, 5)])
def test_batches_are_a_permutation_and_sorted(samples, size):
    order = sampling.shuffle_into_batches(range(samples), samples, size, 0, CPU)[0]
    assert order.dtype == torch.int32
    assert torch.equal(order.sort().values, torch.arange(samples, dtype=torch.int32))
    for batch in order.split(size):
        assert (batch.diff() > 0).all()
    assert samples <= size or not torch.equal(
        order, sampling.shuffle_into_batches(range(samples), samples, size, 1, CPU)[0]
    )


def test_shuffle_of_some_samples_is_that_of_all():
    order, starts = sampling.shuffle_into_batches(range(1000), 1000, 64, 0, CPU)
    some, some_starts = sampling.shuffle_into_batches(range(300, 720), 1000, 64, 0, CPU)
    assert starts.tolist() == [*range(0, 1000, 64), 1000]
    assert len(some) == some_starts[-1] == 420
    for k, batch in enumerate(order.split(64)):
        assert torch.equal(some[some_starts[k] : some_starts[k + 1]], batch[(batch >= 300) & (batch < 720)])


def test_samples_are_uniform_over_batches():
    counts = torch.zeros(10, 3)
    for seed in range(2000):
        for k, batch in enumerate(sampling.shuffle_into_batches(range(10), 10, 4, seed, CPU)[0].split(4)):
            counts[batch.long(), k] += 1
    expected = 2000 * torch.tensor([0.4, 0.4, 0.2])
    assert ((counts - expected).abs() < 5 * (expected * 0.8).sqrt()).all()


def test_gather_batch():
    rated, users, items = make_pairs()
    bits = sampling.build_bitset(users, items, USERS, ITEMS)
    samples = sampling.shuffle_into_batches(range(users.numel() * 5), users.numel() * 5, 300, 0, CPU)[0][:300]
    batch = sampling.gather_batches(samples, users, items, bits, USERS, ITEMS, negatives=4, seed=3)
    u, i, labels, by_item, user_starts, item_starts = batch
    for n, s in enumerate(samples.tolist()):
        positive, index = divmod(s, 5)
        assert u[n] == users[positive]
        assert rated[u[n], i[n]] == (index == 0)
        assert index or i[n] == items[positive]
        assert labels[n] == (index == 0)
    assert [x.dtype for x in batch] == [torch.int32] * 2 + [torch.float32] + [torch.int32] * 3
    assert torch.equal(by_item.long(), i.sort(stable=True).indices)
    for n in range(USERS):
        assert (u[user_starts[n] : user_starts[n + 1]] == n).all()
    for n in range(ITEMS):
        assert (i[by_item[item_starts[n] : item_starts[n + 1]].long()] == n).all()
    assert user_starts[-1] == item_starts[-1] == 300


def test_samples_beyond_the_counts_are_ignored():
    _, users, items = make_pairs()
    bits = sampling.build_bitset(users, items, USERS, ITEMS)
    first_user, pairs = 10, slice(int((users < 10).sum()), int((users < 25).sum()))
    samples = torch.arange(5 * pairs.start, 5 * pairs.stop, dtype=torch.int32).repeat(2, 1)
    counts = torch.tensor([[150], [0]])
    own = {"negatives": 4, "seed": 3, "counts": counts, "first_user": first_user}
    batch = sampling.gather_batches(samples, users, items, bits, 15, ITEMS, **own)
    u, i, labels, _, user_starts, _ = batch
    expected = sampling.gather_batches(samples[0, :150], users, items, bits, USERS, ITEMS, negatives=4, seed=3)
    assert torch.equal(u[0, :150] + first_user, expected[0])
    assert torch.equal(i[0, :150], expected[1])
    assert torch.equal(labels[0, :150], expected[2])
    assert (labels[0, 150:] == sampling.IGNORED).all()
    assert (labels[1] == sampling.IGNORED).all()
    assert user_starts[:, -1].tolist() == [150, 0]
    for n in range(15):
        assert (u[0, user_starts[0, n] : user_starts[0, n + 1]] == n).all()
    assert ((u >= 0) & (u < 15)).all()


def test_gather_empty_batch():
    _, users, items = make_pairs()
    bits = sampling.build_bitset(users, items, USERS, ITEMS)
    none = torch.zeros(0, dtype=torch.int32)
    batch = sampling.gather_batches(none, users, items, bits, USERS, ITEMS, negatives=4, seed=0)
    assert [x.numel() for x in batch] == [0, 0, 0, 0, USERS + 1, ITEMS + 1]
    assert not batch[4].any()
    assert not batch[5].any()


def test_evaluation_items_mask_duplicates_and_positives():
    rated, users, items = make_pairs()
    bits = sampling.build_bitset(users, items, USERS, ITEMS)
    positives = torch.randint(ITEMS, (USERS,), generator=generator(), dtype=torch.int32)
    sampled, mask = sampling.sample_evaluation_items(bits, positives, ITEMS, 0, negatives=50)
    assert sampled.shape == (USERS, 51)
    assert sampled.dtype == torch.int32
    assert mask.shape == (USERS, 50)
    assert torch.equal(sampled[:, -1], positives)
    assert not rated[torch.arange(USERS)[:, None], sampled[:, :-1].long()].any()
    for user in range(USERS):
        excluded = {positives[user].item()}
        for item, is_counted in zip(sampled[user, :-1].tolist(), mask[user].tolist(), strict=True):
            assert is_counted == (item not in excluded)
            excluded.add(item)


def test_count_hits():
    mask = torch.ones(5, 3, dtype=torch.bool)
    mask[2, 0] = False
    scores = torch.tensor([[3, 2, 0, 1.0], [3, 1, 0, 1.0], [3, 2, 0, 1.0], [0, 0, 0, 1.0], [0, 0, float("nan"), 1.0]])
    # Ranked ahead: two; one and a tie; one and one that is masked; none; NaN.
    hits = [
        sampling.count_hits(row[None], row_mask[None], k=2).item() for row, row_mask in zip(scores, mask, strict=True)
    ]
    assert hits == [0, 0, 1, 1, 1]
    assert sampling.count_hits(scores, mask, k=1).item() == 1
    assert not sampling.count_hits(scores * float("nan"), mask, k=2).item()


INTERPRETED = """
import torch
from timetrial.workloads.ncf import sampling

for dtype in (torch.int32, torch.int16, torch.uint8):
    for shape, count in (((700,), 40), ((3, 256), 200), ((3, 256), 900), ((2, 1), 5)):
        first, end = -count // 4, count + count // 4
        if dtype == torch.uint8:
            first, end = 0, min(end, 256)
        ids = torch.randint(first, end, shape, dtype=dtype).sort(-1).values
        expected = sampling.segment_starts(ids, count)
        available, sampling.triton_available = sampling.triton_available, lambda tensor: True
        actual = sampling.segment_starts(ids, count)
        sampling.triton_available = available
        assert torch.equal(actual, expected)
        assert actual.dtype == expected.dtype
"""


def test_kernel_of_segment_starts_equals_pytorch(interpret):
    """With more ids than places too, so that most segments are empty, and with ids that have no segment."""
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("dtype", ["i16", "i32", "u8"])
def test_kernel_of_segment_starts_compiles_for_gpus(compile_for_gpu, capability, dtype):
    types = {"ids_ptr": f"*{dtype}", "starts_ptr": "*i32"}
    compile_for_gpu(sampling._find_starts, capability, types, {"BLOCK": sampling._BLOCK, "WIDTH": sampling._WIDTH})
