"""The signals by which a person or a batch system asks a run to stop."""

import _thread
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

import psutil

from .errors import Exit

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # the last is Ctrl-C
STOPPED_AT_ONCE = "Stopped at once: resume from the last checkpoint, or run again."
"""The sentence on a run that a second Ctrl-C ended in training."""
_STOPPING = b"\ntimetrial: Stopping after this step, with a checkpoint. Ctrl-C again: at once.\n"
_FINALIZER_SECONDS = 0.05  # longer than a finalizer or callback in which a signal arrives


class StoppedEarly(SystemExit):
    """A stop signal arrived outside of training. No `Stopped`, because Hydra's composition catches every Exception."""

    exit_code = Exit.STOPPED

    def __init__(self, sentence: str = "Stopped before training began: run it again.") -> None:
        super().__init__(int(Exit.STOPPED))
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


@dataclass
class StopSignal:
    """Whether a stop signal has arrived: `name` is its name, empty until then; a second Ctrl-C `is_forced`."""

    name: str = ""
    is_forced: bool = False

    @contextmanager
    def listen(self, *, ignore_after: bool = False) -> Iterator["StopSignal"]:
        """Note stop signals within the body, so that the run ends after a step and not in its middle.

        With `ignore_after`, for a process that ends after the body, later signals are ignored.
        """

        def note(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name

        with _handled_by(note, ignore_after):
            yield self

    @contextmanager
    def listen_at_terminal(self, *, raises: bool) -> Iterator["StopSignal"]:
        """Note stop signals within the body as `listen` does, and answer the first one on standard error.

        A second Ctrl-C sets `is_forced`; with `raises`, where training runs in this process, it raises `StoppedEarly`.
        """

        def note(number: int, frame: FrameType | None) -> None:
            if not self.name:
                with suppress(OSError):
                    os.write(sys.stderr.fileno(), _STOPPING)  # `print` may be in the middle of a line
            elif number == signal.SIGINT:
                self.is_forced = True
                if raises:
                    raise StoppedEarly(STOPPED_AT_ONCE)
            self.name = signal.Signals(number).name

        with _handled_by(note, ignore_after=False):
            yield self

    @contextmanager
    def listen_for_children(self) -> Iterator["StopSignal"]:
        """Note stop signals within the body, and pass them on to the child processes that run its jobs.

        Children inherit blocked signals: one that is stopped while it imports is not killed by the signal, but finds it
        pending in `stop_early()`.
        """

        def note(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    child.terminate()

        resource_tracker.ensure_running()  # Python starts it with the first child and then unblocks signals
        ended = threading.Event()
        receiver = threading.Thread(target=ended.wait, daemon=True)
        receiver.start()  # before the signals are blocked: it receives those of this process
        previous = _handle(note)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            yield self
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in previous.items():
                signal.signal(number, handler)
            ended.set()
            receiver.join()


@contextmanager
def _handled_by(note: Callable[[int, FrameType | None], None], ignore_after: bool) -> Iterator[None]:
    previous = _handle(note)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if ignore_after else handler)


@contextmanager
def stop_early(*, ignore_after: bool = False) -> Iterator[None]:
    """Raise `StoppedEarly` in the body when a stop signal arrives or is pending, and ignore later ones.

    With `ignore_after`, for a process that ends after the body, they are ignored there too.
    """

    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, _ignore)
        if not received:
            print(f"timetrial: Stopped by {signal.Signals(number).name}: run it again.", file=sys.stderr)
        received.append(number)
        raise StoppedEarly

    def stop_again(unraisable: "sys.UnraisableHookArgs") -> None:
        """Send the signal anew: it arrived in a finalizer or a callback, out of which Python raises nothing."""
        if isinstance(unraisable.exc_value, StoppedEarly):
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            for number in STOP_SIGNALS:
                signal.signal(number, stop)
            _thread.start_new_thread(send_again, (len(received),))  # a Thread takes locks, which may be held here
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        else:
            previous_hook(unraisable)

    def send_again(num_received: int) -> None:
        time.sleep(_FINALIZER_SECONDS)
        if len(received) == num_received:
            os.kill(os.getpid(), received[0])

    previous_hook, sys.unraisablehook = sys.unraisablehook, stop_again
    previous = _handle(stop)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # raises if one is pending
        yield
    finally:
        sys.unraisablehook = previous_hook
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if ignore_after else handler)


@contextmanager
def defer_stop() -> Iterator[None]:
    """Hold stop signals back within the body; the first of them arrives after it."""
    received: list[int] = []
    previous = _handle(lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def signal_when_parent_ends(number: signal.Signals) -> None:
    """On Linux, let the kernel send this process the signal when its parent ends, however that ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle stop signals, and return the handlers so far; in a thread, where Python allows no handlers, nothing."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in STOP_SIGNALS}


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing. Python reports an error if SIG_IGN replaces the handler of a pending one."""
