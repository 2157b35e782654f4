"""The seam between the loop and a framework."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class StepResult:
    """One update of the weights, over `samples` samples of all ranks; of text, that many `tokens` without padding."""

    samples: int
    tokens: int = 0


@dataclass(frozen=True)
class TrainingStats:
    """What training came to since the last `finish`: the mean loss a step, and how long devices waited for batches."""

    loss: float
    data_wait_seconds: float = 0.0


@dataclass(frozen=True)
class EvalResult:
    """Quality in fractions, equal on every rank.

    For text, `tokens` counts the source and output tokens of this rank, without padding.
    """

    quality: dict[str, float]
    tokens: int = 0


class Engine(Protocol):
    """What the loop drives; every method is called on every rank."""

    def mlperf_params(self) -> dict[str, Any]:
        """Sizes and hyperparameters under their MLPerf names."""
        ...

    def train_epoch(self, number: int) -> Iterator[StepResult]:
        """Trains the 1-based epoch `number`, yielding after each update without waiting for the device."""
        ...

    def synchronize(self) -> TrainingStats:
        """Waits for all devices; sums up since the last call, raises `Diverged` if the loss is not finite."""
        ...

    def evaluate(self) -> EvalResult:
        """Evaluate the model on the whole evaluation set."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a bit-exact continuation needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a `state()`."""
        ...
