"""The signals by which a person or a batch system asks a run to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # the last is Ctrl-C


@dataclass
class StopSignal:
    """Raised, that is `name` is set, once one of the signals has arrived."""

    name: str = ""

    @contextmanager
    def listen(self, *, ignore_after: bool = False) -> Iterator["StopSignal"]:
        """Takes the signals over within the body, so that the run ends at a step's end and not in its middle.

        `ignore_after` is of a process that ends after the body: signals that come then are ignored.
        """

        def note(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name

        before = {number: signal.signal(number, note) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if ignore_after else handler)


def ignore_stop_signals() -> None:
    """For a process that is about to end: batch systems send several, and Python would let the last one kill it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
