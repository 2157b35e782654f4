"""Reading ahead from one pass over images to the next."""

import itertools
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from .batches import ImageBatch
from .decode_workers import Key
from .pipeline import Loader

_DataT = TypeVar("_DataT")


class ReadAhead(Generic[_DataT]):
    """Takes the images of an endless plan from a loader, which goes on to read those that will be asked for next.

    `plans` yields the keys of the batches of a pass over the images (an epoch or an evaluation) and of all later ones.
    """

    def __init__(self, loader: Loader, plans: Callable[[_DataT, int], Iterator[Key]]) -> None:
        self._loader, self._plans = loader, plans
        self._images: Generator[ImageBatch] | None = None
        self._next_pass = 0  # that of the next batch of `_images`; 0: none

    def start(self, data: _DataT, number: int) -> Generator[ImageBatch]:
        """Let the loader read pass `number`, unless it does, and return its images and those of later passes."""
        if self._images is None or number != self._next_pass:
            self.close()
            # A proxy: the loader holds the plan until the data are freed, so the plan must not hold the data.
            self._images = self._loader.batches(self._plans(weakref.proxy(data), number))
            self._next_pass = number
        return self._images

    def take(self, data: _DataT, number: int, batches: int) -> Iterator[ImageBatch]:
        """Yield the images of the `batches` batches of pass `number`."""
        images, self._next_pass = self.start(data, number), 0
        try:
            yield from itertools.islice(images, batches)
            self._next_pass = number + 1
        finally:
            if not self._next_pass:  # aborted: what is read ahead is of no use
                images.close()

    def close(self) -> None:
        """Stop reading ahead."""
        if self._images is not None:
            self._images.close()
        self._next_pass = 0
