"""The seam between the loop and a framework."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Step:
    """One update of the weights, over `samples` samples of all ranks; of text, that many `tokens` without padding."""

    samples: int
    tokens: int = 0


@dataclass(frozen=True)
class Trained:
    """What training came to since the last `finish`: the mean loss a step, and how long devices waited for batches."""

    loss: float
    waited_seconds: float = 0.0


class Engine(Protocol):
    """What the loop drives; every method is called on every rank."""

    def facts(self) -> dict[str, Any]:
        """Sizes and hyperparameters under their MLPerf names."""
        ...

    def epoch(self, number: int) -> Iterator[Step]:
        """Trains the 1-based epoch `number`, yielding after each update without waiting for the device."""
        ...

    def finish(self) -> Trained:
        """Waits for all devices; sums up since the last call, raises `Diverged` if the loss is not finite."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Quality in fractions, equal on every rank."""
        ...

    def state(self) -> dict[str, Any]:
        """All that a bit-exact continuation needs."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up a `state()`."""
        ...
