"""The observer that writes TensorBoard event files (`pip install 'timetrial[tensorboard]'`)."""

from collections.abc import Mapping
from pathlib import Path

from ..core.errors import ConfigurationError
from .curves import Curves


class TensorBoard(Curves):
    """Write the curves of a run, by epoch."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                "observers.tensorboard=true needs TensorBoard: pip install 'timetrial[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(folder))

    def add(self, values: Mapping[str, float], epoch: int, time: float) -> None:
        """Write one point of each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch, walltime=time)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
