"""The signals by which a person or a batch system asks a run to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # the last is Ctrl-C


@dataclass
class StopSignal:
    """Whether a stop signal has arrived: `name` is its name, empty until then."""

    name: str = ""

    @contextmanager
    def listen(self, *, ignore_after: bool = False) -> Iterator["StopSignal"]:
        """Note stop signals within the body, so that the run ends after a step and not in its middle.

        With `ignore_after`, for a process that ends after the body, later signals are ignored.
        """

        def note(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name

        previous = {number: signal.signal(number, note) for number in STOP_SIGNALS}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, signal.SIG_IGN if ignore_after else handler)


def ignore_stop_signals() -> None:
    """Ignore further stop signals in a process that is about to end; batch systems send several."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
