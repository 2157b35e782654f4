"""data=synthetic: random pixels that lie on the device, in ImageNet's sizes; nothing is read and nothing is learned."""

from dataclasses import dataclass

from ..vision.decode_workers import WorkerReader
from ..vision.image_data import SyntheticData
from .data import ImageNetData


class SyntheticImageNetData(SyntheticData, ImageNetData):
    """What a card can do when nothing feeds it: the loader of `timetrial throughput`."""

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

    def _open(self) -> tuple[int, int]:
        chosen = self._settings
        self.num_classes, self._form = chosen.classes, "none"
        return chosen.train_images, chosen.val_images

    def _start_readers(self) -> dict[bool, WorkerReader]:
        return {}
