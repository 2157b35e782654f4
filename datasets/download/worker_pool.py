"""Threads that work together and stop together, and bytes that they count together."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import TypeVar

from ...runner.core.errors import ConfigurationError, Stopped

Item = TypeVar("Item")
Made = TypeVar("Made")
Tell = Callable[[str, int, int | None], None]  # what is being done, how many bytes of it, of how many

_BATCH = 10_000  # items that wait at once: a million would take a gigabyte


class Crew:
    """`jobs` threads. The first task that fails, or a signal to this process, stops all of them, for good."""

    def __init__(self, jobs: int, tell: Tell) -> None:
        if jobs < 1:
            raise ConfigurationError(f"--jobs must be 1 or more, not {jobs}.")
        self._jobs, self._over, self.tell = jobs, threading.Event(), tell

    def run(self, tasks: Iterable[Callable[[], None]], stop: Callable[[], None] = lambda: None) -> None:
        """Runs tasks; `stop` is called too when they are to end, for those that would not notice."""
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                for future in as_completed([pool.submit(task) for task in tasks]):
                    future.result()
            except BaseException:
                self._over.set()
                stop()
                pool.shutdown(cancel_futures=True)
                raise

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """`function` of each item, in order."""
        waiting = iter(items)
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                while batch := list(islice(waiting, _BATCH)):
                    for made in pool.map(function, batch):
                        self.go_on()
                        yield made
            except BaseException:
                self._over.set()
                pool.shutdown(cancel_futures=True)
                raise

    def go_on(self) -> None:
        """Raises `Stopped` once the others have stopped; whatever takes long asks now and then."""
        if self._over.is_set():
            raise Stopped("Stopped: run it again to continue.")

    def counter(self, what: str, total: int) -> Callable[[int], None]:
        """Takes how many more of `total` bytes are done, from any thread; tells, and raises as `go_on` does."""
        done, lock = 0, threading.Lock()

        def count(more: int) -> None:
            nonlocal done
            self.go_on()
            with lock:
                done = min(done + more, total)
                self.tell(what, done, total)

        return count
