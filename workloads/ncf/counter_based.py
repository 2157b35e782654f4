"""Counter-based random numbers (Salmon et al. 2011): a shuffle and samples that are functions of a seed and an index.

So no negatives are stored, ranks that share a seed see the same epoch, and it is the same on every device: PyTorch's
operations and the Triton kernels give equal bits. Numbers are uint32, held as int64 by PyTorch.

Shapes: U users, I items, P pairs, S samples.
"""

import hashlib

import torch
from torch import Tensor

from ..common.nn.triton_support import tl, triton, triton_available

_MASK = (1 << 32) - 1
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = 0x7FEB352D, 0x846CA68B  # of Wellons' lowbias32
_GOLDEN_RATIO = 0x9E3779B9
_ROUNDS = 6  # of the shuffle: with four, samples whose indices differ in one high bit were correlated
_ATTEMPTS = 32  # of rejection sampling; then an item is drawn from those that are left
_CHUNK = 1 << 24  # negatives that PyTorch's operations draw at a time
_BLOCK = 1024  # samples of a program


def assign_batches(samples: range, num_samples: int, batch_size: int, seed: int, device: torch.device) -> Tensor:
    """Return the batch of each of `samples`, out of `num_samples`: [S], uint8 for at most 256 batches, else int32.

    The places of all samples are a pseudorandom permutation. A bijection of the smallest power of two that is at least
    `num_samples` is applied to an index until the result is below that (Kensler 2013, section 3.3, with other mixing
    rounds).
    """
    batches = -(-num_samples // batch_size)
    dtype = torch.uint8 if batches <= 256 else torch.int32
    bits, keys = max(1, (num_samples - 1).bit_length()), _keys(seed, 2 * _ROUNDS)
    if triton_available(torch.empty(0, device=device)):
        out = torch.empty(len(samples), dtype=dtype, device=device)
        grid = (triton.cdiv(len(samples), _BLOCK),)
        _shuffle[grid](
            out_ptr=out,
            first_sample=samples.start,
            end_sample=samples.stop,
            num_samples=num_samples,
            batch_size=batch_size,
            mask=(1 << bits) - 1,
            shift=(bits + 1) // 2,
            **_key_arguments(keys),
            BLOCK=_BLOCK,
        )
        return out
    rank = _permuted(torch.arange(samples.start, samples.stop, device=device), bits, keys)
    outside = (rank >= num_samples).nonzero()[:, 0]
    while outside.numel():
        rank[outside] = _permuted(rank[outside], bits, keys)
        outside = outside[rank[outside] >= num_samples]
    return (rank // batch_size).to(dtype)


def draw_samples(
    samples: Tensor, positive_users: Tensor, positive_items: Tensor, bits: Tensor, num_items: int, negatives: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return users int32, items int32 and labels float32 of samples int32 [S]. The kernel does not wait for the device.

    Sample s belongs to the pair s // (1 + negatives) of `positive_users` and `positive_items` int32 [P]. It is the pair
    itself if s % (1 + negatives) == 0, else an item that is drawn uniformly from those that do not have the user's bit
    in `bits` (`sampling.build_bitset`).
    """
    keys = _keys(seed, 2)
    if triton_available(samples):
        users, items = torch.empty_like(samples), torch.empty_like(samples)
        labels = torch.empty(samples.shape, device=samples.device)
        grid = (triton.cdiv(samples.numel(), _BLOCK),)
        if samples.numel():
            _draw[grid](
                samples_ptr=samples,
                positive_users_ptr=positive_users,
                positive_items_ptr=positive_items,
                bits_ptr=bits,
                users_ptr=users,
                items_ptr=items,
                labels_ptr=labels,
                num_samples=samples.numel(),
                num_items=num_items,
                **_key_arguments(keys),
                GROUP_SIZE=1 + negatives,
                ATTEMPTS=_ATTEMPTS,
                BLOCK=_BLOCK,
            )
        return users, items, labels
    pair = samples // (1 + negatives)
    users, items, is_positive = positive_users[pair], positive_items[pair], samples % (1 + negatives) == 0
    for part in (~is_positive).flatten().nonzero()[:, 0].split(_CHUNK):
        items.view(-1)[part] = _draw_items(samples.flatten()[part], users.flatten()[part], bits, num_items, keys)
    return users, items, is_positive.float()


def contains(bits: Tensor, users: Tensor, items: Tensor, num_items: int) -> Tensor:
    """Return whether each pair is a training pair: bool, in the shape that users and items broadcast to."""
    index = users.long() * num_items + items
    return (bits[index >> 3] >> (index & 7).to(torch.uint8) & 1).bool()


def _draw_items(samples: Tensor, users: Tensor, bits: Tensor, num_items: int, keys: list[int]) -> Tensor:
    """Return a negative item int32 [S] for each sample."""
    mixed = _mix(samples.long() ^ keys[0])
    items = torch.zeros_like(samples)
    pending = torch.arange(len(samples), device=samples.device)
    for attempt in range(_ATTEMPTS):
        if not len(pending):
            break
        drawn = _scaled(_attempt(mixed[pending], attempt, keys[1]), num_items)
        items[pending] = drawn.int()
        pending = pending[contains(bits, users[pending], drawn, num_items)]
    every_item = torch.arange(num_items, device=samples.device)
    for part in pending.split(max(1, _CHUNK // num_items)):
        num_free = (~contains(bits, users[part][:, None], every_item, num_items)).cumsum(1)
        chosen = _scaled(_attempt(mixed[part], _ATTEMPTS, keys[1]), num_free[:, -1])
        items[part] = (num_free <= chosen[:, None]).sum(1).int()
    return items


def _attempt(mixed: Tensor, attempt: int, key: int) -> Tensor:
    return _mix((mixed + attempt * _GOLDEN_RATIO & _MASK) ^ key)


def _scaled(number: Tensor, limit: int | Tensor) -> Tensor:
    """Return numbers below `limit` that are uniform up to limit / 2**32."""
    return number * limit >> 32


def _mix(x: Tensor) -> Tensor:
    x = (x ^ x >> 16) * _FIRST_MULTIPLIER & _MASK
    x = (x ^ x >> 15) * _SECOND_MULTIPLIER & _MASK
    return x ^ x >> 16


def _permuted(x: Tensor, bits: int, keys: list[int]) -> Tensor:
    """Return a bijection of the numbers of `bits` bits: each of its steps can be inverted."""
    mask, shift = (1 << bits) - 1, (bits + 1) // 2
    for number in range(_ROUNDS):
        x = ((x ^ keys[2 * number]) * (keys[2 * number + 1] | 1)) & mask
        x = x ^ x >> shift
    return x


def _keys(seed: int, count: int) -> list[int]:
    """Return `count` numbers of 32 bits, at most 16."""
    digest = hashlib.sha512(str(seed).encode()).digest()
    return [int.from_bytes(digest[4 * number : 4 * number + 4], "little") for number in range(count)]


def _key_arguments(keys: list[int]) -> dict[str, int]:
    """Return the arguments key0, key1, ... of a kernel, as signed numbers: Triton's type depends on their size."""
    return {f"key{number}": key - (key >> 31 << 32) for number, key in enumerate(keys)}


_FIRST, _SECOND = tl.constexpr(_FIRST_MULTIPLIER), tl.constexpr(_SECOND_MULTIPLIER)
_STEP = tl.constexpr(_GOLDEN_RATIO)

# Kernels are compiled before the clock starts, for any seed and size.
_NUMBERS = [
    "first_sample",
    "end_sample",
    "num_samples",
    "batch_size",
    "mask",
    "shift",
    "num_items",
    *(f"key{number}" for number in range(2 * _ROUNDS)),
]
_POINTERS = [
    "samples_ptr",
    "positive_users_ptr",
    "positive_items_ptr",
    "bits_ptr",
    "users_ptr",
    "items_ptr",
    "labels_ptr",
]


@triton.jit
def _mixed(x):
    x = (x ^ x >> 16) * _FIRST
    x = (x ^ x >> 15) * _SECOND
    return x ^ x >> 16


@triton.jit
def _round(x, key, multiplier, mask, shift):
    x = ((x ^ key.to(tl.uint32)) * (multiplier.to(tl.uint32) | 1)) & mask.to(tl.uint32)
    return x ^ x >> shift.to(tl.uint32)


@triton.jit(do_not_specialize=_NUMBERS)
def _shuffle(
    out_ptr, first_sample, end_sample, num_samples, batch_size, mask, shift, key0, key1, key2, key3, key4, key5, key6,
    key7, key8, key9, key10, key11, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the batch of each sample, like `assign_batches`."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < end_sample - first_sample
    limit = num_samples.to(tl.uint32)
    rank = (first_sample + place).to(tl.uint32)
    outside = exists
    while tl.max(outside.to(tl.int32), 0) != 0:
        x = _round(rank, key0, key1, mask, shift)
        x = _round(x, key2, key3, mask, shift)
        x = _round(x, key4, key5, mask, shift)
        x = _round(x, key6, key7, mask, shift)
        x = _round(x, key8, key9, mask, shift)
        x = _round(x, key10, key11, mask, shift)
        rank = tl.where(outside, x, rank)
        outside = outside & (rank >= limit)
    batch = rank // batch_size.to(tl.uint32)
    tl.store(out_ptr + place, batch.to(out_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _is_taken(bits_ptr, user, item, num_items, mask):
    index = user.to(tl.int64) * num_items + item
    byte = tl.load(bits_ptr + (index >> 3), mask=mask, other=0).to(tl.int32)
    return (byte >> (index & 7).to(tl.int32) & 1) != 0


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_POINTERS)
def _draw(
    samples_ptr, positive_users_ptr, positive_items_ptr, bits_ptr, users_ptr, items_ptr, labels_ptr, num_samples,
    num_items, key0, key1, GROUP_SIZE: tl.constexpr, ATTEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write user, item and label of each sample, like `draw_samples`."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = place < num_samples
    sample = tl.load(samples_ptr + place, mask=exists, other=0)
    pair = sample // GROUP_SIZE
    user = tl.load(positive_users_ptr + pair, mask=exists, other=0)
    is_positive = sample % GROUP_SIZE == 0
    item = tl.load(positive_items_ptr + pair, mask=exists & is_positive, other=0)
    mixed = _mixed(sample.to(tl.uint32) ^ key0.to(tl.uint32))
    limit = num_items.to(tl.uint32)
    pending = exists & (sample % GROUP_SIZE != 0)
    attempt, offset = 0, tl.zeros((), tl.uint32)
    while (attempt < ATTEMPTS) & (tl.max(pending.to(tl.int32), 0) != 0):
        number = _mixed((mixed + offset) ^ key1.to(tl.uint32))
        drawn = tl.umulhi(number, tl.zeros_like(number) + limit).to(tl.int32)
        item = tl.where(pending, drawn, item)
        pending = pending & _is_taken(bits_ptr, user, drawn, num_items, pending)
        attempt += 1
        offset += _STEP
    if tl.max(pending.to(tl.int32), 0) != 0:  # a user who has rated almost all items
        num_free = tl.zeros_like(item)
        for candidate in range(num_items):
            num_free += tl.where(_is_taken(bits_ptr, user, candidate, num_items, pending), 0, 1)
        number = _mixed((mixed + offset) ^ key1.to(tl.uint32))
        chosen = tl.umulhi(number, num_free.to(tl.uint32)).to(tl.int32)
        for candidate in range(num_items):
            free = pending & (_is_taken(bits_ptr, user, candidate, num_items, pending) == 0)
            item = tl.where(free & (chosen == 0), candidate, item)
            chosen -= free.to(tl.int32)
    tl.store(users_ptr + place, user, mask=exists)
    tl.store(items_ptr + place, item, mask=exists)
    tl.store(labels_ptr + place, is_positive.to(tl.float32), mask=exists)
