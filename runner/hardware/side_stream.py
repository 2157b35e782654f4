"""A second stream of the device, on which the next item is made while the device works on the one before."""

from collections.abc import Iterator
from typing import TypeVar

import torch

_ItemT = TypeVar("_ItemT")


class SideStream:
    """Runs small kernels ahead of those of the current stream. A CPU has none: there, items are made when asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def make_ahead(self, items: Iterator[_ItemT]) -> Iterator[_ItemT]:
        """Make each of the items while the device works on the one before, which is dropped before the next is made."""
        if self._stream is None:
            yield from items
            return
        current = torch.cuda.current_stream(self._device)
        made: list[_ItemT] = []
        ended = False
        while not ended:
            ready, made = made, []
            # Waiting for the last step limits how many items are held, and frees the memory of the one it has read.
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                made = [item for item in (next(items, None),) if item is not None]
                ended = not made
                finished = self._stream.record_event()
            yield from ready
            current.wait_event(finished)
