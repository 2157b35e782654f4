"""Counter-based random numbers: their distributions, and Triton's interpreter against PyTorch's operations."""

import pytest
import torch

from timetrial.workloads.ncf import counter_based, sampling

CPU = torch.device("cpu")
USERS, ITEMS = 30, 41


def draw(users, items, num_users, num_items, negatives, seed=1):
    """Return (bits, users, items, labels) of all samples of the pairs."""
    bits = sampling.build_bitset(users, items, num_users, num_items)
    samples = torch.arange(users.numel() * (1 + negatives), dtype=torch.int32)
    return bits, *counter_based.draw_samples(samples, users, items, bits, num_items, negatives, seed)


def test_negatives_are_uniform_over_unrated_items():
    rated = torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(0)) < 0.3
    rated[:, 0], rated[:, 1] = True, False
    users, items = (column.int() for column in rated.nonzero(as_tuple=True))
    _, drawn_users, drawn_items, labels = draw(users, items, USERS, ITEMS, 40)
    assert torch.equal(labels.view(-1, 41)[:, 0], torch.ones(users.numel()))
    assert torch.equal(drawn_items.view(-1, 41)[:, 0], items)
    assert torch.equal(drawn_users, users.repeat_interleave(41))
    pairs = drawn_users[labels == 0].long(), drawn_items[labels == 0].long()
    assert not rated[pairs].any()
    counts = torch.zeros(USERS, ITEMS).index_put_(pairs, torch.ones(()), accumulate=True)
    expected = torch.where(rated, 0, counts.sum(1, keepdim=True) / (~rated).sum(1, keepdim=True))
    chi_squared = ((counts - expected) ** 2 / expected)[~rated].sum().item()
    degrees_of_freedom = (~rated).sum().item() - USERS
    assert abs(chi_squared - degrees_of_freedom) < 5 * (2 * degrees_of_freedom) ** 0.5
    assert not torch.equal(draw(users, items, USERS, ITEMS, 40, seed=2)[2], drawn_items)


def test_negatives_of_user_with_two_unrated_items():
    """Most of them are drawn from the list of the items that are left."""
    items = 5000
    pairs = torch.cat([torch.arange(7), torch.arange(8, 4321), torch.arange(4322, items)]).int()
    bits = sampling.build_bitset(torch.zeros_like(pairs), pairs, 1, items)
    samples = torch.arange(1500, dtype=torch.int32)
    _, drawn, labels = counter_based.draw_samples(samples, torch.zeros_like(pairs), pairs, bits, items, 2, 0)
    free, counts = drawn[labels == 0].unique(return_counts=True)
    assert free.tolist() == [7, 4321]
    assert abs(counts[0].item() - 500) < 5 * 250**0.5


@pytest.mark.parametrize("count", [3001, 300_000])
def test_batches_of_samples_that_differ_in_one_bit_are_independent(count):
    """Differences of two samples' batches are as frequent as those of a random permutation, by chi squared."""
    batches, seeds = 100, 12
    size = -(-count // batches)
    numbers, worst = torch.arange(count), 0.0
    for bit in range(count.bit_length() - 1):
        counts = torch.zeros(batches)
        for seed in range(seeds):
            of_samples = counter_based.assign_batches(range(count), count, size, seed, CPU).long()
            first = numbers[(numbers >> bit & 1 == 0) & (numbers | 1 << bit < count)]
            counts += ((of_samples[first] - of_samples[first | 1 << bit]) % batches).bincount(minlength=batches)
        shares = of_samples.bincount(minlength=batches) / count  # the last batch may be smaller
        expected = torch.stack([(shares * shares.roll(shift)).sum() for shift in range(batches)]) * counts.sum()
        chi_squared = ((counts - expected) ** 2 / expected).sum().item()
        worst = max(worst, abs(chi_squared - (batches - 1)) / (2 * (batches - 1)) ** 0.5)
    assert worst < 5.5


def test_batches_have_their_sizes():
    for count, size in ((3001, 32), (64, 64), (7, 10), (1, 1)):
        sizes = counter_based.assign_batches(range(count), count, size, 1, CPU).long().bincount().tolist()
        assert sizes == [size] * (count // size) + [count % size] * (count % size > 0)


def test_first_sample_visits_every_rank_equally_often():
    ranks = torch.tensor([counter_based.assign_batches(range(50), 50, 1, seed, CPU)[0].item() for seed in range(5000)])
    counts = ranks.bincount(minlength=50)
    assert abs(((counts - 100) ** 2 / 100).sum() - 49) < 5 * (2 * 49) ** 0.5


INTERPRETED = """
import torch
from timetrial.workloads.ncf import counter_based, sampling

CPU = torch.device("cpu")
rated = torch.rand(9, 33) < torch.linspace(0.1, 0.99, 9)[:, None]
rated[:, 5], rated[:, 6] = True, False
users, items = (column.int() for column in rated.nonzero(as_tuple=True))
bits = sampling.build_bitset(users, items, 9, 33)
samples = torch.randperm(users.numel() * 5).int()[:-3]
shuffles = (range(3000), 3000, 64, 5), (range(1030), 1030, 2, 6), (range(1), 1, 1, 7), (range(700, 2900), 3000, 64, 5)
expected = [counter_based.assign_batches(*given, CPU) for given in shuffles]
expected += counter_based.draw_samples(samples, users, items, bits, 33, 4, 8)
counter_based.triton_available = lambda tensor: True
counter_based._ATTEMPTS = 2
actual = [counter_based.assign_batches(*given, CPU) for given in shuffles]
scanned = counter_based.draw_samples(samples, users, items, bits, 33, 4, 8)
counter_based.triton_available = lambda tensor: False
assert all(map(torch.equal, scanned, counter_based.draw_samples(samples, users, items, bits, 33, 4, 8)))
counter_based.triton_available = lambda tensor: True
counter_based._ATTEMPTS = 32
actual += counter_based.draw_samples(samples, users, items, bits, 33, 4, 8)
assert all(map(torch.equal, actual, expected)), [(a, b) for a, b in zip(actual, expected) if not torch.equal(a, b)]
assert [part.dtype for part in actual] == [part.dtype for part in expected]
"""


def test_kernels_equal_pytorch(interpret):
    """To the bit, with many attempts for a user and with two, after which the items that are left are scanned."""
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_kernels_compile_for_gpus(compile_for_gpu, capability):
    block = {"BLOCK": counter_based._BLOCK}
    for dtype in ("u8", "i32"):
        compile_for_gpu(counter_based._shuffle, capability, {"out_ptr": f"*{dtype}"}, block)
    ids = ("samples_ptr", "positive_users_ptr", "positive_items_ptr", "users_ptr", "items_ptr")
    types = dict.fromkeys(ids, "*i32") | {"bits_ptr": "*u8", "labels_ptr": "*fp32"}
    constants = {"GROUP_SIZE": 5, "ATTEMPTS": counter_based._ATTEMPTS} | block
    compile_for_gpu(counter_based._draw, capability, types, constants)
