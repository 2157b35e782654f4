"""Checkpoints: at block ends now and then, and on a stop signal; a killed writer leaves the last one whole."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core.atomic_files import write_atomically
from ..core.errors import DataError, Stopped, TimeLimit
from ..core.signals import StopSignal
from .distributed import World
from .engine import Engine
from .events import BlockStarted, Event, RunStarted, RunStopped, StepEnded, now

# Between these steps several ranks ask one another whether to stop; one rank alone looks at every step.
_STEPS_BETWEEN_QUESTIONS = 16
_CONTINUE, _STOP, _OUT_OF_TIME = 0, 1, 2


@dataclass
class Checkpointer:
    """The observer that saves, on every rank; it also ends the run on a stop signal or at its time limit.

    It comes last among the observers. It acts after a step and where a block starts, when the last one's evaluation has
    been judged. `history` is what rank 0's other observers need to go on.
    """

    path: Path
    engine: Engine
    world: World
    stop: StopSignal
    history: Callable[[], dict[str, Any]]
    every_seconds: float
    time_limit_seconds: float | None = None
    done: int = 0
    _steps: int = 0
    _started: float = field(default_factory=now)
    _saved: float = field(default_factory=now)
    over: bool = False  # the target was reached: what follows is past it and is not resumed

    def __call__(self, event: Event) -> None:
        """Follows the run; raises `Stopped` or `TimeLimit` on all ranks at the same step."""
        match event:
            case RunStarted():
                self._started = self._saved = event.time
            case StepEnded():
                self._steps += 1
                if self.world.size == 1 or self._steps % _STEPS_BETWEEN_QUESTIONS == 0:
                    self._handle_stop_request()
            case BlockStarted(first_epoch=first):
                self.done = first - 1
                if self.world.any(not self.over and now() - self._saved >= self.every_seconds):
                    self.save()
                self._handle_stop_request()
            case RunStopped(status=status):
                self.over = status == "success"

    def save(self) -> None:
        """Writes the state of all ranks as of now; called on every rank."""
        state = {"engine": self.engine.state_dict(), "done": self.done}
        if self.world.rank == 0:
            memory = io.BytesIO()
            torch.save(state | self.history() | {"time": now()}, memory)
            self.path.parent.mkdir(exist_ok=True)
            write_atomically(self.path, memory.getvalue())
        self._saved = now()

    def _handle_stop_request(self) -> None:
        limit = self.time_limit_seconds
        wish = _STOP if self.stop.name else _CONTINUE
        if limit is not None and now() - self._started > limit:
            wish = _OUT_OF_TIME
        wish = self.world.all_reduce_max(wish)
        if wish == _CONTINUE:
            return
        if not self.over:
            self.save()
        if wish == _OUT_OF_TIME:
            raise TimeLimit(
                f"The limit of {limit:g} s was reached before the target: resume it, or raise time_limit_seconds."
            )
        raise Stopped(f"Stopped by {self.stop.name or 'a signal to another rank'}; a checkpoint is written.")


def load(path: Path) -> dict[str, Any]:
    """The last checkpoint, on the CPU; what a killed writer left beside it is removed."""
    for stale in path.parent.glob(".*.tmp"):
        stale.unlink(missing_ok=True)
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file fails in many ways, all of them pickle's
        raise DataError(f"The checkpoint {path} cannot be read: delete it to start the run over.") from error
