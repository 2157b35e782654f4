"""Decide whether a run stops early: on a stop signal or at its time limit, on all ranks at the same step."""

from collections.abc import Callable
from enum import IntEnum

from ..core.errors import RunError, Stopped, TimeLimit
from ..core.signals import StopSignal
from .clock import now
from .distributed import World
from .events import BlockStarted, EvalStarted, Event, RunStarted, StepEnded

# Every sixteenth step, several ranks start an all-reduce and read the result of the one before, so that none waits for
# another. A single rank decides at every step.
_STEPS_BETWEEN_AGREEMENTS = 16


class _Reason(IntEnum):
    NONE = 0
    SIGNAL = 1
    TIME_LIMIT = 2


class EarlyStop:
    """The `should_stop` of the training loop, and an observer that counts its steps; one instance per rank."""

    def __init__(self, stop: StopSignal, world: World, time_limit_seconds: float | None = None) -> None:
        self._stop, self._world, self._limit = stop, world, time_limit_seconds
        self._started = now()
        self._steps = 0
        self._between_steps = False
        self._reason = _Reason.NONE
        self._agreement: Callable[[], int] | None = None  # result of the all-reduce that was started last

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case RunStarted():
                self._started = event.time
            case BlockStarted() | EvalStarted():
                self._between_steps = True
            case StepEnded():
                self._between_steps = False
                self._steps += 1

    def should_stop(self) -> bool:
        """Return whether the run is to stop now, the same on every rank; each rank must ask."""
        within_block = self._world.size > 1 and not self._between_steps
        if within_block and self._steps % _STEPS_BETWEEN_AGREEMENTS:
            return False
        agreed = self._agreement() if self._agreement is not None else _Reason.NONE
        if within_block:
            self._agreement = self._world.start_all_reduce_max(self._own_reason())
        else:
            self._agreement = None
            agreed = max(agreed, self._world.all_reduce_max(self._own_reason()))
        self._reason = _Reason(agreed)
        return self._reason != _Reason.NONE

    def is_requested(self) -> bool:
        """Return whether this rank alone has a reason to stop."""
        return self._own_reason() != _Reason.NONE

    def _own_reason(self) -> _Reason:
        if self._limit is not None and now() - self._started > self._limit:
            return _Reason.TIME_LIMIT
        return _Reason.SIGNAL if self._stop.name else _Reason.NONE

    def error(self) -> RunError:
        """Return the error that carries the exit code of the stop."""
        if self._reason == _Reason.TIME_LIMIT:
            return TimeLimit(
                f"The limit of {self._limit:g} s was reached before the target: resume it, or raise time_limit_seconds."
            )
        return Stopped(f"Stopped by {self._stop.name or 'a signal to another rank'}; a checkpoint is written.")
