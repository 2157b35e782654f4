"""A thread pool that stops as a whole, and byte counters that its threads share."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import TypeVar

from ...runner.core.errors import ConfigurationError, Stopped
from ...runner.core.progress import ProgressCallback, no_progress

Item = TypeVar("Item")
Result = TypeVar("Result")
ByteCounter = Callable[[int], None]  # takes how many more bytes have been processed; may raise `Stopped`

_MAX_PENDING = 10_000  # a million pending futures take a gigabyte


class WorkerPool:
    """`num_threads` threads. The first task that fails, or a signal to this process, cancels all of them for good."""

    def __init__(self, num_threads: int, progress: ProgressCallback = no_progress) -> None:
        if num_threads < 1:
            raise ConfigurationError(f"--jobs must be 1 or more, not {num_threads}.")
        self._num_threads, self._cancelled, self.progress = num_threads, threading.Event(), progress

    def run(self, tasks: Iterable[Callable[[], None]], on_cancel: Callable[[], None] = lambda: None) -> None:
        """Run all tasks. On failure, `on_cancel` interrupts tasks that do not call `raise_if_cancelled`."""
        with ThreadPoolExecutor(self._num_threads) as executor:
            try:
                for future in as_completed([executor.submit(task) for task in tasks]):
                    future.result()
            except BaseException:
                self._cancelled.set()
                on_cancel()
                executor.shutdown(cancel_futures=True)
                raise

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `function(item)` for each item, in order."""
        pending = iter(items)
        with ThreadPoolExecutor(self._num_threads) as executor:
            try:
                while batch := list(islice(pending, _MAX_PENDING)):
                    for result in executor.map(function, batch):
                        self.raise_if_cancelled()
                        yield result
            except BaseException:
                self._cancelled.set()
                executor.shutdown(cancel_futures=True)
                raise

    def raise_if_cancelled(self) -> None:
        """Raise `Stopped` once the pool is cancelled. Long tasks call this now and then."""
        if self._cancelled.is_set():
            raise Stopped("Stopped: run it again to continue.")

    def byte_counter(self, description: str, total: int) -> ByteCounter:
        """Return a thread-safe counter that reports progress towards `total` bytes and raises once cancelled."""
        done, lock = 0, threading.Lock()

        def count(num_bytes: int) -> None:
            nonlocal done
            self.raise_if_cancelled()
            with lock:
                done = min(done + num_bytes, total)
                self.progress(description, done, total)

        return count
