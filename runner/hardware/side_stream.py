"""A second stream of the device, on which the next item is made while the device works on the one before."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

import torch

_ItemT = TypeVar("_ItemT")


class SideStream:
    """Runs small kernels ahead of those of the current stream, on GPUs of NVIDIA and AMD.

    Elsewhere items are made when they are asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _second_stream(device) if device.type == "cuda" else None

    @property
    def is_used(self) -> bool:
        """Whether items are made ahead on this device."""
        return self._stream is not None

    def make_ahead(self, items: Iterator[_ItemT]) -> Iterator[_ItemT]:
        """Make each of the items while the device works on the one before.

        Submit all work that reads an item to the current stream before asking for the next one: the side stream waits
        for that work, and then reuses the memory of items that are no longer held.
        """
        if self._stream is None:
            yield from items
            return
        current = torch.cuda.current_stream(self._device)
        made: list[_ItemT] = []
        ended = False
        while not ended:
            ready, made = made, []
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                made = list(itertools.islice(items, 1))
                finished = self._stream.record_event()
            ended = not made
            try:
                yield from ready
            finally:  # also if the consumer asks for no more
                current.wait_event(finished)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the same stream to all runs of a process, which are equally fast then."""
    return torch.cuda.Stream(device, priority=-1)
