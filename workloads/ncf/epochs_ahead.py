"""Making the first items of an epoch during the one before."""

import itertools
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ...runner.hardware.side_stream import SideStream

_ItemT = TypeVar("_ItemT")


class EpochsAhead(Generic[_ItemT]):
    """Takes the items of epochs in turn from `make_ahead`, so that the first of the next epoch is made during this one.

    `items_from` yields the items of an epoch and of all later ones.
    """

    def __init__(self, side_stream: SideStream, items_from: Callable[[int], Iterator[_ItemT]]) -> None:
        self._side_stream, self._items_from = side_stream, items_from
        self._items: Iterator[_ItemT] = iter(())
        self._next_epoch: int | None = None  # of the next item; None: within an epoch

    def take(self, epoch: int, count: int) -> Iterator[_ItemT]:
        """Yield the `count` items of an epoch."""
        if epoch != self._next_epoch:
            self._items = self._side_stream.make_ahead(self._items_from(epoch))
        self._next_epoch = None
        yield from itertools.islice(self._items, count)
        self._next_epoch = epoch + 1
