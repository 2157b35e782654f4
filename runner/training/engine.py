"""The interface between the training loop and a framework."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class StepResult:
    """One weight update over `samples` samples of all ranks; for text, `tokens` counts them without padding."""

    samples: int
    tokens: int = 0


@dataclass(frozen=True)
class TrainingStats:
    """Training since the last `synchronize`: mean loss of a step, and seconds that this rank waited for batches."""

    loss: float
    data_wait_seconds: float = 0.0


@dataclass(frozen=True)
class EvalResult:
    """Quality in fractions, equal on every rank.

    For text, `tokens` counts the source and output tokens of this rank, without padding.
    """

    quality: dict[str, float]
    tokens: int = 0


class DataSizes(Protocol):
    """Sizes of the data, which every engine provides."""

    train_size: int
    eval_size: int
    steps_per_epoch: int


class Engine(Protocol):
    """The interface that the loop and the launcher use. Every method is called on every rank."""

    @property
    def data(self) -> DataSizes:
        """The data that the engine trains on."""
        ...

    def warm_up(self) -> None:
        """Compile and allocate on synthetic batches, then restore the state: nothing is learned."""
        ...

    def mlperf_params(self) -> dict[str, Any]:
        """Return sizes and hyperparameters under their MLPerf names."""
        ...

    def open_data(self) -> None:
        """Wait for all ranks, then open the data; called once, when the clock runs."""
        ...

    def train_epoch(self, epoch: int) -> Iterator[StepResult]:
        """Train the 1-based `epoch`, yielding after each update without waiting for the device."""
        ...

    def synchronize(self) -> TrainingStats:
        """Wait for all devices and return the statistics since the last call; raise `Diverged` for a loss that is
        not finite.
        """
        ...

    def evaluate(self, stop_requested: Callable[[], bool] = lambda: False) -> EvalResult | None:
        """Evaluate the model on the whole evaluation set; return None if any rank's `stop_requested` ended it early."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that a bit-exact continuation needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()`."""
        ...
