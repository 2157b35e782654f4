"""Batches, evaluation items and hit counting of NCF on the device.

Shapes: U users, I items, P training pairs, B samples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...datasets.formats.movielens import HIT_RANK
from ..common.nn.triton_support import tl, triton, triton_available
from .counter_based import assign_batches, draw_samples

IGNORED = -1.0  # label of a sample that does not count
_CHUNK = 1 << 24  # pairs processed at a time: limits temporary memory to about 1 GiB
_BLOCK, _WIDTH = 256, 8  # ids of a program, and starts that it writes for each of them at a time


@dataclass
class OwnSamples:
    """A rank's samples `numbers` int32 [n, S] of n global batches of `global_size` samples.

    The first `counts` int32 [n, 1] of each batch are its own and ascend; the others fill it up. None: all are its own.
    """

    numbers: Tensor
    counts: Tensor | None
    global_size: int


def build_bitset(users: Tensor, items: Tensor, num_users: int, num_items: int) -> Tensor:
    """Return a bitset uint8 [ceil(U * I / 8)] of the training pairs, which must be unique. Waits for the device."""
    if users.numel() and int(torch.bincount(users, minlength=num_users).max()) >= num_items:
        raise ValueError(
            f"A user has rated all {num_items} items, so there is no negative: remove the user or add items."
        )
    bits = torch.zeros((num_users * num_items + 7) // 8, dtype=torch.uint8, device=users.device)
    for chunk_users, chunk_items in zip(users.split(_CHUNK), items.split(_CHUNK), strict=True):
        index = chunk_users.long() * num_items + chunk_items
        # Each bit is set once, so adding equals a bitwise or, which scatter operations lack.
        bits.index_add_(0, index >> 3, (1 << (index & 7)).to(torch.uint8))
    return bits


def shuffle_into_batches(
    samples: range, num_samples: int, batch_size: int, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Shuffle `num_samples` into batches; return those of `samples` batch by batch, and where each batch starts.

    They are int32 [len(samples)], ascending within a batch, and int32 [number of batches + 1].
    """
    batches = assign_batches(samples, num_samples, batch_size, seed, device)
    # One stable radix sort by few bits leaves the samples of a batch in ascending order.
    sorted_batches, order = batches.sort(stable=True)
    numbers = torch.add(order, samples.start, out=torch.empty_like(order, dtype=torch.int32))
    return numbers, segment_starts(sorted_batches, -(-num_samples // batch_size))


def segment_starts(ids: Tensor, count: int) -> Tensor:
    """Return where the segment of each id starts in the ascending ids [..., B]: int32 [..., count + 1].

    Ids outside of 0 to `count` - 1 belong to no segment.
    """
    if triton_available(ids) and ids.numel():
        starts = torch.empty(*ids.shape[:-1], count + 1, dtype=torch.int32, device=ids.device)
        size = ids.shape[-1]
        grid = (triton.cdiv(size + 1, _BLOCK), ids.numel() // size)
        _find_starts[grid](ids_ptr=ids, starts_ptr=starts, num_places=size, num_ids=count, BLOCK=_BLOCK, WIDTH=_WIDTH)
        return starts
    ids, bounds = ids.int(), torch.arange(count + 1, dtype=torch.int32, device=ids.device)
    return torch.searchsorted(ids, bounds.repeat(*ids.shape[:-1], 1) if ids.ndim > 1 else bounds, out_int32=True)


def sort_by_item(items: Tensor, num_items: int) -> tuple[Tensor, Tensor]:
    """Return the stable order by item, int32 [..., B], and the start of each item's segment, int32 [..., I + 1]."""
    key = items.short() if num_items <= torch.iinfo(torch.int16).max else items  # half the radix passes
    sorted_items, by_item = key.sort(stable=True)
    return by_item.int(), segment_starts(sorted_items, num_items)


def gather_batches(
    samples: Tensor, positive_users: Tensor, positive_items: Tensor, bits: Tensor, num_users: int, num_items: int, *,
    negatives: int, seed: int, counts: Tensor | None = None, first_user: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the arguments of `NeuMF.forward` for sample indices [..., B], as `draw_samples` draws them.

    The `num_users` users are numbered from `first_user` on. With `counts` int32 [..., 1], only so many of the first
    samples count; these ascend. The others get the label `IGNORED` and belong to no user's segment.
    """
    users, items, labels = draw_samples(samples, positive_users, positive_items, bits, num_items, negatives, seed)
    if first_user:
        users.sub_(first_user)
    if counts is not None:
        ignored = torch.arange(samples.shape[-1], device=samples.device) >= counts
        labels.masked_fill_(ignored, IGNORED)
        users.masked_fill_(ignored, num_users)
    user_starts = segment_starts(users, num_users)
    if counts is not None:
        users.clamp_(max=num_users - 1)
    by_item, item_starts = sort_by_item(items, num_items)
    return users, items, labels, by_item, user_starts, item_starts


def sample_evaluation_items(
    bits: Tensor, positives: Tensor, num_items: int, seed: int, negatives: int = 999
) -> tuple[Tensor, Tensor]:
    """Return (items int32 [U, negatives + 1], mask bool [U, negatives]) of all users; the test positive is last.

    Negatives are sampled with replacement from the items without a training rating (MLPerf v0.5). The mask selects the
    first copy of each distinct negative that is not the positive.
    """
    users = torch.arange(positives.numel(), dtype=torch.int32, device=positives.device)
    samples = torch.arange(users.numel() * (negatives + 1), dtype=torch.int32, device=users.device)
    drawn = draw_samples(samples, users, positives.int(), bits, num_items, negatives, seed)[1]
    items = drawn.view(-1, negatives + 1).roll(-1, 1)  # the pair itself came first
    del samples, drawn
    mask = torch.empty(items.shape[0], negatives, dtype=torch.bool, device=items.device)
    chunk_rows = max(1, _CHUNK // (negatives + 1))
    for chunk_items, chunk_mask in zip(items.split(chunk_rows), mask.split(chunk_rows), strict=True):
        sorted_items, order = chunk_items[:, :-1].sort(dim=1, stable=True)
        is_first = torch.ones_like(sorted_items, dtype=torch.bool)
        is_first[:, 1:] = sorted_items[:, 1:] != sorted_items[:, :-1]
        chunk_mask.scatter_(1, order, is_first & (sorted_items != chunk_items[:, -1:]))
    return items, mask


def count_hits(scores: Tensor, mask: Tensor, k: int = HIT_RANK) -> Tensor:
    """Return the number of users (int64, on the device) whose positive is among the top `k` of the masked items.

    The positive is the last of scores [n, negatives + 1]; a tie ranks it last.
    """
    # "Not below" makes NaN rank ahead of the positive, so that it never counts as a hit.
    ranked_ahead = ~(scores[:, :-1] < scores[:, -1:]) & mask
    return (ranked_ahead.sum(1) < k).sum()


@triton.jit(do_not_specialize=["num_places", "num_ids"], do_not_specialize_on_alignment=["ids_ptr", "starts_ptr"])
def _find_starts(ids_ptr, starts_ptr, num_places, num_ids, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Write the start of each id from 0 to num_ids after that of the place before, up to that of the place itself."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ids_ptr, starts_ptr = ids_ptr + row * num_places, starts_ptr + row * (num_ids + 1)
    last = tl.load(ids_ptr + place, mask=place < num_places, other=0).to(tl.int32)
    last = tl.where(place < num_places, tl.minimum(last, num_ids), tl.where(place == num_places, num_ids, -1))
    first = tl.load(ids_ptr + place - 1, mask=(place > 0) & (place <= num_places), other=0).to(tl.int32) + 1
    first = tl.where(place > 0, tl.maximum(first, 0), 0)
    next_ids = first[:, None] + tl.arange(0, WIDTH)[None]
    while tl.max((next_ids <= last[:, None]).to(tl.int32)) != 0:
        tl.store(starts_ptr + next_ids, place[:, None], mask=next_ids <= last[:, None])
        next_ids += WIDTH
