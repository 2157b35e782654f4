"""Gradients summed over the ranks, in buckets during the backward pass or all at once after it.

Unlike `DistributedDataParallel`, it can be captured in a device graph on any stream, and reduces only the parameters
that it is given.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .distributed import World

_BUCKET_BYTES = 25 << 20  # large enough for the full bandwidth, small enough to overlap the backward pass
_FIRST_BUCKET_BYTES = 1 << 20  # so that communication begins early
_ALIGNMENT = 32  # elements: gradients start at multiples of it, for vectorized loads and stores


@dataclass
class _Bucket:
    """Parameters whose gradients are reduced in one message."""

    parameters: list[nn.Parameter]
    flat: Tensor
    views: list[Tensor]
    missing: int
    work: Any = None


class GradientReduction:
    """Replaces the gradients of `parameters` by their sums over the ranks of `world`.

    With `overlap`, each bucket is reduced as soon as `backward` has computed it. Buckets are filled from the last
    parameter to the first, about the order in which a backward pass computes gradients, and reduced in the same order
    on all ranks: a late gradient would delay every later bucket. Without, `finish` reduces one bucket of all gradients,
    or one for each change of their dtype. Over fast links that takes less time than the backward pass loses beside
    collectives, which hold multiprocessors while they wait for other ranks (docs/studies/multi_gpu.md).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], world: World, *, overlap: bool) -> None:
        self._world, self._enabled, self._next = world, True, 0
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        limits = (_FIRST_BUCKET_BYTES, _BUCKET_BYTES) if overlap else (math.inf, math.inf)
        self._buckets = [_bucket(part) for part in _parts(trained[::-1], *limits)]
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        for parameter in trained if overlap else ():
            parameter.register_post_accumulate_grad_hook(self._ready)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Accumulate the gradients of this rank without reducing them, as `no_sync` of DistributedDataParallel."""
        enabled, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = enabled

    def finish(self) -> None:
        """Reduce what `backward` has not, and let the device wait for all sums; a missing gradient counts as zeros."""
        for bucket in self._buckets[self._next :]:
            self._reduce(bucket)
        for bucket in self._buckets:
            bucket.work.wait()
            bucket.missing = len(bucket.parameters)
        self._next = 0

    def _ready(self, parameter: Tensor) -> None:
        if not self._enabled:
            return
        self._bucket_of[parameter].missing -= 1  # type: ignore[index]
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._reduce(self._buckets[self._next])
            self._next += 1

    def _reduce(self, bucket: _Bucket) -> None:
        pairs = [
            (view, parameter.grad)
            for view, parameter in zip(bucket.views, bucket.parameters, strict=True)
            if parameter.grad is not None
        ]
        if len(pairs) < len(bucket.views):
            bucket.flat.zero_()
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [grad for _, grad in pairs])
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            parameter.grad = view
        bucket.work = dist.all_reduce(bucket.flat, group=self._world.device_group, async_op=True)


def _parts(parameters: list[nn.Parameter], first_limit: float, limit: float) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in parts of one dtype, of `limit` bytes at most or one parameter; `first_limit` at first."""
    part: list[nn.Parameter] = []
    size, part_limit = 0, first_limit
    for parameter in parameters:
        if part and (size + parameter.nbytes > part_limit or parameter.dtype != part[0].dtype):
            yield part
            part, size, part_limit = [], 0, limit
        part.append(parameter)
        size += parameter.nbytes
    if part:
        yield part


def _bucket(parameters: list[nn.Parameter]) -> _Bucket:
    """Return a bucket whose views have the memory format of their parameters, as gradients do."""
    lengths = [-(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT for parameter in parameters]
    starts = itertools.accumulate(lengths, initial=0)
    flat = parameters[0].detach().new_zeros(sum(lengths))
    views = [
        flat.as_strided(parameter.shape, parameter.stride(), start)
        for parameter, start in zip(parameters, starts, strict=False)
    ]
    return _Bucket(parameters, flat, views, len(parameters))
