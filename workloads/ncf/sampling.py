"""Sampling, shuffling and hit counting of NCF, on the device: no Python loop over samples.

Every draw comes from a `torch.Generator` of the tensors' device, so ranks that share a seed see the same epoch.
"""

import torch
from torch import Generator, Tensor

_CHUNK = 1 << 24  # pairs looked at in one go: bounds the temporary memory near 1 GiB
_ROUNDS = 24  # of rejection, before the items that are left are counted out


def membership(users: Tensor, items: Tensor, num_users: int, num_items: int) -> Tensor:
    """Bitset uint8 [ceil(U*I/8)] of the training pairs, which must be unique. Waits for the device."""
    if users.numel() and int(torch.bincount(users, minlength=num_users).max()) >= num_items:
        raise ValueError(
            f"A user has rated all {num_items} items, which leaves no negative: drop the user or add items."
        )
    bits = torch.zeros((num_users * num_items + 7) // 8, dtype=torch.uint8, device=users.device)
    for some_users, some_items in zip(users.split(_CHUNK), items.split(_CHUNK), strict=True):
        cell = _cell(some_users, some_items, num_items)
        # Unique pairs set every bit once, so adding is the same as the "or" that scatters lack.
        bits.index_add_(0, cell >> 3, (1 << (cell & 7)).to(torch.uint8))
    return bits


def contains(bits: Tensor, users: Tensor, items: Tensor, num_items: int) -> Tensor:
    """Whether each pair is a training pair: bool, in the shape that users and items broadcast to."""
    cell = _cell(users, items, num_items)
    return (bits[cell >> 3] >> (cell & 7).to(torch.uint8) & 1).bool()


def draw_negatives(
    positive_users: Tensor, bits: Tensor, num_items: int, per_positive: int, generator: Generator
) -> Tensor:
    """int32 [P, per_positive]: uniform over the items that are no training pair of the positive's user."""
    drawn = _uniform(num_items, positive_users.numel() * per_positive, generator)
    left = _rejected(drawn.view(-1, per_positive), positive_users, bits, num_items)
    for _ in range(_ROUNDS):
        if not left.numel():
            break
        again = _uniform(num_items, left.numel(), generator)
        drawn[left] = again
        left = left[contains(bits, positive_users[left // per_positive], again, num_items)]
    for some in left.split(max(1, _CHUNK // num_items)):
        drawn[some] = _free_items(positive_users[some // per_positive], bits, num_items, generator)
    return drawn.view(-1, per_positive)


def shuffle(num_samples: int, batch_size: int, generator: Generator) -> Tensor:
    """int32 [num_samples]: a random permutation cut into batches, whose samples then ascend within each batch."""
    batches = -(-num_samples // batch_size)
    place = torch.randperm(num_samples, generator=generator, device=generator.device, dtype=torch.int32)
    # One stable radix sort on few bits: sample indices stay ascending inside a batch.
    key = (place // batch_size).to(torch.uint8 if batches <= 256 else torch.int32)
    del place
    return key.sort(stable=True).indices.int()


def run_starts(ids: Tensor, count: int) -> Tensor:
    """int32 [count+1]: where the run of each id starts in the ascending `ids`."""
    return torch.searchsorted(ids, torch.arange(count + 1, dtype=ids.dtype, device=ids.device), out_int32=True)


def runs_by_item(items: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """(by_item int32 [B], item_starts int32 [I+1]): the stable order by item, and its runs."""
    key = items.short() if num_items <= torch.iinfo(torch.int16).max else items  # half the radix passes
    ordered, by_item = key.sort(stable=True)
    return by_item.int(), run_starts(ordered, num_items)


def gather_batch(
    samples: Tensor, positive_users: Tensor, positive_items: Tensor, negatives: Tensor, num_users: int, num_items: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`NeuMF.forward`'s arguments for ascending sample indices: sample s is of positive s // (1 + n), which it is
    itself where s % (1 + n) == 0, and one of its n negatives elsewhere. Does not wait for the device.
    """
    group = 1 + negatives.shape[1]
    positive = samples // group
    place = samples - positive * group
    users, label = positive_users[positive], place == 0
    # A negative's index is its sample's, less one for every positive up to it.
    negative = negatives.view(-1)[(samples - positive - 1).clamp_(min=0)]
    items = torch.where(label, positive_items[positive], negative)
    by_item, item_starts = runs_by_item(items, num_items)
    return users, items, label.float(), by_item, run_starts(users, num_users), item_starts


def evaluation_items(
    bits: Tensor, positives: Tensor, num_items: int, generator: Generator, negatives: int = 999
) -> tuple[Tensor, Tensor]:
    """(items int32 [U, negatives+1], counted bool [U, negatives]) for every user 0..U-1; the test positive is last.

    Negatives are drawn with replacement from the items without a training rating (MLPerf v0.5). `counted` marks the
    first copy of each distinct negative that is not the positive.
    """
    users = torch.arange(positives.numel(), dtype=torch.int32, device=positives.device)
    drawn = draw_negatives(users, bits, num_items, negatives, generator)
    items = torch.cat([drawn, positives[:, None].int()], 1)
    del drawn
    counted = torch.empty(items.shape[0], negatives, dtype=torch.bool, device=items.device)
    rows = max(1, _CHUNK // (negatives + 1))
    for some, mark in zip(items.split(rows), counted.split(rows), strict=True):
        ordered, order = some[:, :-1].sort(dim=1, stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        mark.scatter_(1, order, first & (ordered != some[:, -1:]))
    return items, counted


def hits(scores: Tensor, counted: Tensor, top: int = 10) -> Tensor:
    """Users (device int64) whose positive, the last of scores [n, k+1], is among the `top`; a tie ranks it last."""
    # Written as "not below", so that a score that is no number counts as ahead, and never as a hit.
    ahead = ~(scores[:, :-1] < scores[:, -1:]) & counted
    return (ahead.sum(1) < top).sum()


def _cell(users: Tensor, items: Tensor, num_items: int) -> Tensor:
    return users.long() * num_items + items


def _uniform(num_items: int, count: int, generator: Generator) -> Tensor:
    return torch.randint(num_items, (count,), generator=generator, device=generator.device, dtype=torch.int32)


def _rejected(drawn: Tensor, positive_users: Tensor, bits: Tensor, num_items: int) -> Tensor:
    """Flat indices int64 of the draws [P, n] that are training pairs."""
    rows = max(1, _CHUNK // drawn.shape[1])
    found, start = [], 0
    for some, users in zip(drawn.split(rows), positive_users.split(rows), strict=True):
        found.append(contains(bits, users[:, None], some, num_items).view(-1).nonzero().view(-1) + start)
        start += some.numel()
    return torch.cat(found)


def _free_items(users: Tensor, bits: Tensor, num_items: int, generator: Generator) -> Tensor:
    """One uniform item for each user among those it has no training pair with, by counting: int32 [n]."""
    items = torch.arange(num_items, device=users.device)
    free = (~contains(bits, users[:, None], items, num_items)).cumsum(1)
    chance = torch.rand(users.numel(), 1, generator=generator, device=users.device, dtype=torch.float64)
    return (free <= (chance * free[:, -1:]).long()).sum(1).int()
