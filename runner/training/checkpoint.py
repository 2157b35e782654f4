"""Checkpoints: at block starts now and then, and when the run is interrupted. A kill leaves the last one whole."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core.atomic_files import write_atomically
from ..core.errors import DataError, Exit
from .clock import now, read_clock
from .distributed import World
from .engine import Engine
from .events import BlockStarted, Event, RunInterrupted, RunStarted, RunStopped, StatefulObserver

_DIGEST_BYTES = 32  # SHA-256 of all before it, at the end of the file


@dataclass
class Checkpointer:
    """The observer that saves the state of the run, on every rank.

    `observers` are those of rank 0 whose state belongs to the checkpoint. It saves at the start of a block when
    `every_seconds` have passed, and when the run is interrupted before its target; with `at_end` also when the target
    is reached, so that a kill in the epochs past the target cannot undo it.
    """

    path: Path
    engine: Engine
    world: World
    observers: Mapping[str, StatefulObserver]
    every_seconds: float
    completed_epochs: int = 0
    evaluation_pending: bool = False
    at_end: bool = False
    _last_save: float = field(default_factory=now)
    _target_reached: bool = False

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case RunStarted():
                self._last_save = event.time
            case BlockStarted(first_epoch=first):
                self.completed_epochs, self.evaluation_pending = first - 1, False
                due = not self._target_reached and now() - self._last_save >= self.every_seconds
                if self.world.any(due):
                    self.save()
            case RunInterrupted(completed_epochs=epochs, evaluation_pending=pending) if not self._target_reached:
                self.completed_epochs, self.evaluation_pending = epochs, pending
                self.save()
            case RunStopped(status=status):
                self._target_reached = status == "success"
                if self._target_reached and self.at_end:
                    self.save(int(Exit.TARGET_REACHED))

    def save(self, exit_code: int | None = None) -> None:
        """Write the state of all ranks as of now; called on every rank. An `exit_code` says that the run is over."""
        state = {
            "engine": self.engine.state_dict(),
            "completed_epochs": self.completed_epochs,
            "evaluation_pending": self.evaluation_pending,
            "exit_code": exit_code,
            "clock": read_clock(),
        }
        if self.world.rank == 0:
            observers = {name: observer.state_dict() for name, observer in self.observers.items()}
            memory = io.BytesIO()
            torch.save(state | {"observers": observers}, memory)
            memory.write(hashlib.sha256(memory.getbuffer()).digest())  # torch.load ignores what follows its file
            self.path.parent.mkdir(exist_ok=True)
            write_atomically(self.path, memory.getvalue())
        self._last_save = now()


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the last checkpoint on the CPU, and remove what a killed writer left beside it.

    Raises `DataError` if it cannot be read or its checksum differs.
    """
    for leftover in path.parent.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    try:
        content = path.read_bytes()
        if hashlib.sha256(memoryview(content)[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
            raise ValueError("its checksum differs")
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # pickle fails on a damaged file in many ways
        raise DataError(f"The checkpoint {path} cannot be read: delete it to start the run over.") from error
