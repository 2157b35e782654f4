"""data=synthetic: random pixels on the device, by default in ImageNet's sizes; nothing is read or learned."""

from dataclasses import dataclass

from ....runner.core.progress import ProgressCallback
from ..vision.image_data import SyntheticBatches
from .data import ImageNetData


class SyntheticImageNetData(ImageNetData):
    """The loader of `timetrial throughput`: what a GPU does when it never waits for data."""

    loader = "synthetic"

    @dataclass
    class Settings(ImageNetData.Settings):
        """The settings of all loaders, and the size of the dataset; the defaults are ImageNet's."""

        classes: int = 1000
        """Number of classes."""
        train_images: int = 1_281_167
        """Number of training images."""
        val_images: int = 50_000
        """Number of validation images."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.classes, self.train_images, self.val_images) < 1:
                raise ValueError("classes, train_images and val_images must be 1 or more.")

    @classmethod
    def prepare_data(cls, settings: ImageNetData.Settings, progress: ProgressCallback) -> None:
        """Do nothing: there is no dataset."""

    def _read_sizes(self) -> tuple[int, int]:
        self.num_classes, self._form = self.settings.classes, "none"
        return self.settings.train_images, self.settings.val_images

    def _open_sets(self) -> None:
        pass

    def _build_batch_source(self) -> SyntheticBatches:
        return SyntheticBatches()
