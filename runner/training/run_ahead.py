"""How far the host may submit captured steps of several ranks ahead of the device."""

import time
from collections import deque

import torch

from ..core.errors import LostRank

_STEPS_AHEAD = 8  # enough that the device never waits for the host
_POLL_SECONDS = 5e-5


class RunAhead:
    """Keep the host a few steps ahead, and raise `LostRank` if the device does not finish one in `timeout_seconds`.

    Collectives in a device graph have no timeout: if a rank is lost, the devices of the others wait forever.
    """

    def __init__(self, device: torch.device, timeout_seconds: float) -> None:
        self._device, self._timeout_seconds = device, timeout_seconds
        self._events: deque[torch.Event] = deque()

    def step_submitted(self) -> None:
        """Note the end of the work submitted so far; wait for an earlier step if there are too many."""
        event = torch.Event(self._device)
        event.record()
        self._events.append(event)
        if len(self._events) > _STEPS_AHEAD:
            self._wait_for(self._events.popleft())

    def wait(self) -> None:
        """Wait until the device has finished all steps."""
        while self._events:
            self._wait_for(self._events.popleft())

    def _wait_for(self, event: torch.Event) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while not event.query():
            if time.monotonic() > deadline:
                raise LostRank(
                    f"A training step did not end within {self._timeout_seconds:g} s: find out which rank does not "
                    "take part (see stderr_*.txt in the run directory), then resume the run."
                )
            time.sleep(_POLL_SECONDS)
