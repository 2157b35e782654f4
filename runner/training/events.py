"""What happens during a run, as values: each event is stamped once and every observer sees the same time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_WALL = time.time() - time.perf_counter()


def now() -> float:
    """Seconds since the epoch on a clock that never steps: wall time at import plus the performance counter."""
    return _WALL + time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened at `time` (seconds since the epoch)."""

    time: float = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class InitStarted(Event):
    """Building, compiling and warming up begin; nothing of it is on the clock."""

    caches_cleared: bool = False


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The clock starts. `params` hold sizes and hyperparameters under their MLPerf names."""

    params: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BlockStarted(Event):
    """Training of `epochs` epochs begins with the 1-based epoch `first_epoch`; an evaluation follows the block."""

    first_epoch: int
    epochs: int


@dataclass(frozen=True, kw_only=True)
class StepEnded(Event):
    """One update of the weights was queued on the device, for `samples` samples over all ranks.

    Of text, they hold that many `tokens`, source and target, without padding.
    """

    epoch: int
    samples: int
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockEnded(Event):
    """The device has finished the block: its mean training loss, and the time that devices waited for batches."""

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
    """Evaluation ended with `quality`: fractions, higher is better.

    For text, `tokens` counts the source and output tokens of this rank, without padding.
    """

    epoch: int
    quality: Mapping[str, float]
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """The clock stops; `status` is `success` or `aborted`."""

    status: str


Observer = Callable[[Event], None]
