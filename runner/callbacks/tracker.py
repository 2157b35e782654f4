"""What the observers for experiment trackers share: a thread that calls the tracker, and the result of the run."""

import hashlib
import re
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console

from ..core.console import is_quiet
from ..core.errors import Exit
from ..hardware.error_translation import to_run_error
from ..record.run_dir import RunDir
from ..record.run_record import RunRecord
from .curves import Curves

# While rank 0 waits so long for each of two trackers, the other ranks do not yet take it for lost
# (`launcher.hang_timeout_seconds`).
_PATIENCE_SECONDS = 20.0
_INTERVAL_SECONDS = 5.0  # between two calls: what they cost the training's process stays below 1% of its time
_REASON_LENGTH = 200  # characters of an error in a warning


class Point(NamedTuple):
    """One point of each curve in `values`, at a 1-based epoch and a time in seconds since the epoch."""

    values: Mapping[str, float]
    epoch: int
    time: float


class Tracker(Curves):
    """Record a run in an experiment tracker, from entering this context to leaving it.

    All calls to the tracker are made in one thread, so that training never waits for a server. The first problem is
    printed as a warning; it does not end the run. `id` is the same in all attempts of a run.
    """

    name: str
    """Name of the tracker in messages."""
    remedy: str
    """What to do when the tracker fails, as the end of a sentence."""

    def __init__(self, run_dir: RunDir, title: str, console: Console) -> None:
        self.run_dir, self.title, self.console = run_dir, title, console
        self.record = run_dir.record()
        first = self.record.attempts[0]
        self.id = hashlib.sha256(f"{first.hostname} {first.pid} {first.started_at}".encode()).hexdigest()[:16]
        self._points: SimpleQueue[Point] = SimpleQueue()
        self._ending = (dict[str, float](), Exit.FAILURE)
        self._is_open, self._has_ended = threading.Event(), threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)

    @abstractmethod
    def open(self) -> str:
        """Start the run in the tracker, or continue it, and return where it is to be found."""

    @abstractmethod
    def log(self, points: Sequence[Point]) -> None:
        """Send points of the curves."""

    @abstractmethod
    def finish(self, result: Mapping[str, float], exit_code: Exit) -> None:
        """Send the result of the run, and how it ended."""

    def __enter__(self) -> Self:
        """Open the tracker before the clock starts; one that takes longer is opened while the run goes on."""
        self._thread.start()
        self._is_open.wait(_PATIENCE_SECONDS)
        return self

    def add(self, values: Mapping[str, float], epoch: int, time: float) -> None:
        """Queue one point of each curve."""
        self._points.put(Point(values, epoch, time))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        record = self.run_dir.record()
        if record.exit_code is not None:
            exit_code = Exit(record.exit_code)
        else:
            known = to_run_error(error) if error else None
            exit_code = known.exit_code if known else Exit.FAILURE
        self._ending = (_result(record, exit_code), exit_code)
        self._has_ended.set()
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive():
            self.warn(f"has not recorded all of this run within {_PATIENCE_SECONDS:g} s")

    def warn(self, problem: str) -> None:
        """Print the first problem of the run with the name of the tracker and the remedy."""
        if self._has_warned:
            return
        self._has_warned = True
        sentence = f"{self.name} {problem}: {self.remedy}."
        self.console.print(sentence, style="yellow", soft_wrap=True, markup=False, highlight=False)

    def _work(self) -> None:
        try:
            place = _hide_login(self.open())
            if not is_quiet():
                self.console.print(f"{self.name} {place}", soft_wrap=True, markup=False)
            self._is_open.set()
            has_ended = False
            while not has_ended:
                has_ended = self._has_ended.wait(_INTERVAL_SECONDS)
                if points := [self._points.get() for _ in range(self._points.qsize())]:
                    self.log(points)
            self.finish(*self._ending)
        except Exception as error:  # whatever it is, training goes on without the tracker
            self.warn(f"does not record this run any further ({first_line(error)})")
        finally:
            self._is_open.set()


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its text, shortened and without the login of an address."""
    line = _hide_login(next(iter(str(error).strip().splitlines()), ""))
    return f"{type(error).__name__}: {line}".removesuffix(": ")[:_REASON_LENGTH].rstrip(".")


def _hide_login(text: str) -> str:
    """Return a text in which addresses such as https://user:password@host lack user and password."""
    return re.sub(r"://[^/\s]*@", "://", text)


def _result(record: RunRecord, exit_code: Exit) -> dict[str, float]:
    """Return the seed, the exit code and, once evaluated, quality and epochs on the clock and the time-to-train."""
    result: dict[str, float] = {"result/seed": record.config["seed"], "result/exit_code": int(exit_code)}
    if training := record.training:
        result |= {f"result/{metric}": value for metric, value in (training.quality or {}).items()}
        result["result/epochs"] = training.epochs
        if training.reached:
            result["result/time_to_train_seconds"] = training.seconds
    return result
