"""Sampling, shuffling and hit counting of NCF on the device.

All random numbers come from a `torch.Generator` of the tensors' device, so ranks that share a seed see the same epoch.
Shapes: U users, I items, P training pairs, B samples.
"""

import torch
from torch import Generator, Tensor

_CHUNK = 1 << 24  # pairs processed at a time: limits temporary memory to about 1 GiB
_REJECTION_ROUNDS = 24  # of rejection sampling; then the remaining negatives are drawn from a list of free items


def build_bitset(users: Tensor, items: Tensor, num_users: int, num_items: int) -> Tensor:
    """Return a bitset uint8 [ceil(U * I / 8)] of the training pairs, which must be unique. Waits for the device."""
    if users.numel() and int(torch.bincount(users, minlength=num_users).max()) >= num_items:
        raise ValueError(
            f"A user has rated all {num_items} items, so there is no negative: remove the user or add items."
        )
    bits = torch.zeros((num_users * num_items + 7) // 8, dtype=torch.uint8, device=users.device)
    for chunk_users, chunk_items in zip(users.split(_CHUNK), items.split(_CHUNK), strict=True):
        index = _pair_index(chunk_users, chunk_items, num_items)
        # Each bit is set once, so adding equals a bitwise or, which scatter operations lack.
        bits.index_add_(0, index >> 3, (1 << (index & 7)).to(torch.uint8))
    return bits


def contains(bits: Tensor, users: Tensor, items: Tensor, num_items: int) -> Tensor:
    """Return whether each pair is a training pair: bool, in the shape that users and items broadcast to."""
    index = _pair_index(users, items, num_items)
    return (bits[index >> 3] >> (index & 7).to(torch.uint8) & 1).bool()


def sample_negatives(
    positive_users: Tensor, bits: Tensor, num_items: int, per_positive: int, generator: Generator
) -> Tensor:
    """Sample items uniformly from those without a training pair of the positive's user: int32 [P, per_positive]."""
    samples = _uniform(num_items, positive_users.numel() * per_positive, generator)
    rejected = _rejected_indices(samples.view(-1, per_positive), positive_users, bits, num_items)
    for _ in range(_REJECTION_ROUNDS):
        if not rejected.numel():
            break
        resampled = _uniform(num_items, rejected.numel(), generator)
        samples[rejected] = resampled
        rejected = rejected[contains(bits, positive_users[rejected // per_positive], resampled, num_items)]
    for chunk in rejected.split(max(1, _CHUNK // num_items)):
        samples[chunk] = _sample_free_items(positive_users[chunk // per_positive], bits, num_items, generator)
    return samples.view(-1, per_positive)


def shuffle_into_batches(num_samples: int, batch_size: int, generator: Generator) -> Tensor:
    """Return a random permutation int32 [num_samples] in which the samples of each batch are in ascending order."""
    batches = -(-num_samples // batch_size)
    rank = torch.randperm(num_samples, generator=generator, device=generator.device, dtype=torch.int32)
    # One stable radix sort by few bits leaves the sample indices of a batch in ascending order.
    key = (rank // batch_size).to(torch.uint8 if batches <= 256 else torch.int32)
    del rank
    return key.sort(stable=True).indices.int()


def segment_starts(ids: Tensor, count: int) -> Tensor:
    """Return where the segment of each id starts in the ascending ids [..., B]: int32 [..., count + 1]."""
    bounds = torch.arange(count + 1, dtype=ids.dtype, device=ids.device)
    return torch.searchsorted(ids, bounds.repeat(*ids.shape[:-1], 1) if ids.ndim > 1 else bounds, out_int32=True)


def sort_by_item(items: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """Return the stable order by item, int32 [..., B], and the start of each item's segment, int32 [..., I + 1]."""
    key = items.short() if num_items <= torch.iinfo(torch.int16).max else items  # half the radix passes
    sorted_items, by_item = key.sort(stable=True)
    return by_item.int(), segment_starts(sorted_items, num_items)


def gather_batches(
    samples: Tensor, positive_users: Tensor, positive_items: Tensor, negatives: Tensor, num_users: int, num_items: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the arguments of `NeuMF.forward` for ascending sample indices [..., B]. Does not wait for the device.

    With n negatives per positive, sample s belongs to positive s // (1 + n): it is the positive itself if
    s % (1 + n) == 0, else one of its negatives.
    """
    group_size = 1 + negatives.shape[1]
    positive = samples // group_size
    index_in_group = samples - positive * group_size
    users, label = positive_users[positive], index_in_group == 0
    # The index of a negative is that of its sample minus the number of positives before it.
    negative = negatives.view(-1)[(samples - positive - 1).clamp_(min=0)]
    items = torch.where(label, positive_items[positive], negative)
    by_item, item_starts = sort_by_item(items, num_items)
    return users, items, label.float(), by_item, segment_starts(users, num_users), item_starts


def sample_evaluation_items(
    bits: Tensor, positives: Tensor, num_items: int, generator: Generator, negatives: int = 999
) -> tuple[Tensor, Tensor]:
    """Return (items int32 [U, negatives + 1], mask bool [U, negatives]) of all users; the test positive is last.

    Negatives are sampled with replacement from the items without a training rating (MLPerf v0.5). The mask selects the
    first copy of each distinct negative that is not the positive.
    """
    users = torch.arange(positives.numel(), dtype=torch.int32, device=positives.device)
    samples = sample_negatives(users, bits, num_items, negatives, generator)
    items = torch.cat([samples, positives[:, None].int()], 1)
    del samples
    mask = torch.empty(items.shape[0], negatives, dtype=torch.bool, device=items.device)
    chunk_rows = max(1, _CHUNK // (negatives + 1))
    for chunk_items, chunk_mask in zip(items.split(chunk_rows), mask.split(chunk_rows), strict=True):
        sorted_items, order = chunk_items[:, :-1].sort(dim=1, stable=True)
        is_first = torch.ones_like(sorted_items, dtype=torch.bool)
        is_first[:, 1:] = sorted_items[:, 1:] != sorted_items[:, :-1]
        chunk_mask.scatter_(1, order, is_first & (sorted_items != chunk_items[:, -1:]))
    return items, mask


def count_hits(scores: Tensor, mask: Tensor, k: int = 10) -> Tensor:
    """Return the number of users (int64, on the device) whose positive is among the top `k` of the masked items.

    The positive is the last of scores [n, negatives + 1]; a tie ranks it last.
    """
    # "Not below" makes NaN rank ahead of the positive, so that it never counts as a hit.
    ranked_ahead = ~(scores[:, :-1] < scores[:, -1:]) & mask
    return (ranked_ahead.sum(1) < k).sum()


def _pair_index(users: Tensor, items: Tensor, num_items: int) -> Tensor:
    return users.long() * num_items + items


def _uniform(num_items: int, count: int, generator: Generator) -> Tensor:
    return torch.randint(num_items, (count,), generator=generator, device=generator.device, dtype=torch.int32)


def _rejected_indices(samples: Tensor, positive_users: Tensor, bits: Tensor, num_items: int) -> Tensor:
    """Return the flat indices int64 of the samples [P, n] that are training pairs."""
    chunk_rows = max(1, _CHUNK // samples.shape[1])
    indices, start = [], 0
    for chunk, users in zip(samples.split(chunk_rows), positive_users.split(chunk_rows), strict=True):
        indices.append(contains(bits, users[:, None], chunk, num_items).view(-1).nonzero().view(-1) + start)
        start += chunk.numel()
    return torch.cat(indices)


def _sample_free_items(users: Tensor, bits: Tensor, num_items: int, generator: Generator) -> Tensor:
    """Sample one item per user uniformly from those without a training pair, by their cumulative count: int32 [n]."""
    items = torch.arange(num_items, device=users.device)
    num_free = (~contains(bits, users[:, None], items, num_items)).cumsum(1)
    uniform = torch.rand(users.numel(), 1, generator=generator, device=users.device, dtype=torch.float64)
    return (num_free <= (uniform * num_free[:, -1:]).long()).sum(1).int()
