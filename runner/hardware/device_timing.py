"""Time work by the clock of the device that does it."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from .devices import synchronize

_ItemT = TypeVar("_ItemT")


class DeviceTimer:
    """Accumulate the time between start() and stop() as the device sees it.

    Both are recorded on the device's stream where it supports timed events, so that the spans between submitted work
    are idle time of the device. Elsewhere they are read from the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.uses_device_clock = device.type in ("cuda", "xpu")
        self._device = device
        self._spans: list[tuple[Any, Any]] = []
        self._started: Any = None

    def start(self) -> None:
        """Start a span at the end of the work submitted so far."""
        self._started = self._record()

    def stop(self) -> None:
        """End the span."""
        self._spans.append((self._started, self._record()))

    def timed(self, items: Iterable[_ItemT]) -> Iterator[_ItemT]:
        """Yield the items, and time how long each takes to arrive."""
        self.start()
        for item in items:
            self.stop()
            yield item
            self.start()

    def pop_seconds(self) -> float:
        """Return the sum of all spans since the last call; the device must have finished its work."""
        spans, self._spans = self._spans, []
        if self.uses_device_clock:
            return sum(start.elapsed_time(end) for start, end in spans) / 1000
        return sum(end - start for start, end in spans)

    def _record(self) -> Any:
        if not self.uses_device_clock:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


def time_on_device(device: torch.device, function: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that the device takes for the work of `function`, and the seconds of its submission."""
    timer = DeviceTimer(device)
    synchronize(device)
    timer.start()
    started = time.perf_counter()
    function()
    submission_seconds = time.perf_counter() - started
    if not timer.uses_device_clock:
        synchronize(device)
    timer.stop()
    synchronize(device)
    return timer.pop_seconds(), submission_seconds
