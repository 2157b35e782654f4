"""The events of a run. Each is stamped once, so that every observer sees the same time.

InitStarted
RunStarted                                  the clock starts
    BlockStarted
        StepEnded ...
    BlockEnded
    EvalStarted
    EvalEnded
    ...
    RunInterrupted                          only if the run is to stop early
RunStopped                                  the clock stops
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .clock import now


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened at `time` (seconds since the epoch)."""

    time: float = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class InitStarted(Event):
    """Building, compiling and warming up begin, off the clock."""

    caches_cleared: bool = False


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The clock starts. `params` hold sizes and hyperparameters under their MLPerf names."""

    params: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BlockStarted(Event):
    """Training of `epochs` epochs begins with the 1-based `first_epoch`; an evaluation follows the block."""

    first_epoch: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class StepEnded(Event):
    """One weight update was queued on the device, over `samples` samples of all ranks.

    For text, `tokens` counts their source and target tokens, without padding.
    """

    epoch: int
    samples: int
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockEnded(Event):
    """The device has finished the block. `loss` is the mean of its steps."""

    first_epoch: int
    epochs: int
    samples: int
    tokens: int = 0
    loss: float
    data_wait_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EvalStarted(Event):
    """Evaluation after the 1-based `epoch` begins."""

    epoch: int


@dataclass(frozen=True, kw_only=True)
class EvalEnded(Event):
    """Evaluation ended with `quality`: fractions, or losses.

    For text, `tokens` counts the source and output tokens of this rank, without padding.
    """

    epoch: int
    quality: Mapping[str, float]
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class RunInterrupted(Event):
    """The run is to stop early, after a step, at the start of a block or within an evaluation.

    `completed_epochs` have been trained and evaluated; with `evaluation_pending`, the last of them is not evaluated.
    """

    completed_epochs: int
    evaluation_pending: bool = False


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """The clock stops; `status` is `success` or `aborted`."""

    status: str


class Observer(Protocol):
    """Whatever follows a run without being part of training."""

    def __call__(self, event: Event, /) -> None:
        """Handle one event."""
        ...


class StatefulObserver(Observer, Protocol):
    """An observer whose state goes into the checkpoint, so that a resumed run continues it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, as of now."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; called before the first event."""
        ...
