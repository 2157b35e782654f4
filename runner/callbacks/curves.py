"""The curves that observers write for other programs: the same names and values in each of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from ..training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event


class Curves(ABC):
    """Turn events into loss and samples per second of each block, and quality and seconds of each evaluation."""

    _started = 0.0

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case BlockStarted() | EvalStarted():
                self._started = event.time
            case BlockEnded(first_epoch=first, epochs=epochs, samples=samples, loss=loss):
                values = {"train/loss": loss}
                if samples:  # of this attempt
                    values["train/samples_per_second"] = samples / (event.time - self._started)
                self.add(values, first + epochs - 1, event.time)
            case EvalEnded(epoch=epoch, quality=quality):
                values = {f"quality/{metric}": value for metric, value in quality.items()}
                self.add(values | {"evaluation/seconds": event.time - self._started}, epoch, event.time)

    @abstractmethod
    def add(self, values: Mapping[str, float], epoch: int, time: float) -> None:
        """Add one point to each curve, at the 1-based `epoch` and `time` in seconds since the epoch."""
