"""The observer that writes TensorBoard event files (`pip install -e '.[tensorboard]'`)."""

from pathlib import Path

from ..core.errors import ConfigurationError
from ..training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event


class TensorBoard:
    """Write loss and samples per second of each block, and quality and seconds of each evaluation, by epoch."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                "observers.tensorboard=true needs TensorBoard: pip install -e '.[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(folder))
        self._started = 0.0

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case BlockStarted() | EvalStarted():
                self._started = event.time
            case BlockEnded(first_epoch=first, epochs=epochs, samples=samples, loss=loss):
                epoch = first + epochs - 1
                self._add("train/loss", loss, epoch, event.time)
                self._add("train/samples_per_second", samples / (event.time - self._started), epoch, event.time)
            case EvalEnded(epoch=epoch, quality=quality):
                for metric, value in quality.items():
                    self._add(f"quality/{metric}", value, epoch, event.time)
                self._add("evaluation/seconds", event.time - self._started, epoch, event.time)
                self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()

    def _add(self, name: str, value: float, epoch: int, time: float) -> None:
        self._writer.add_scalar(name, value, epoch, walltime=time)
