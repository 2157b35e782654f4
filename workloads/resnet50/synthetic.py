"""data=synthetic: random pixels that lie on the device, in ImageNet's sizes; nothing is read and nothing is learned."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from timetrial.workloads.resnet50.data import Images
from timetrial.workloads.resnet50.reading import Decoded, Plan


class SyntheticImages(Images):
    """What a card can do when nothing feeds it: the loader of `timetrial throughput`."""

    loader = "synthetic"

    @dataclass
    class Settings(Images.Settings):
        """The sizes of ImageNet, for want of a folder to count."""

        classes: int = 1000
        train_images: int = 1_281_167
        val_images: int = 50_000

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.classes, self.train_images, self.val_images) < 1:
                raise ValueError("classes, train_images and val_images must be 1 or more.")

    def _open(self) -> tuple[int, int]:
        chosen = self._settings
        assert isinstance(chosen, SyntheticImages.Settings)
        self.num_classes, self._form = chosen.classes, "none"
        self._resident: Decoded | None = None
        return chosen.train_images, chosen.val_images

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        for numbers in plan:
            size, edge = len(numbers), self.image_size
            if self._resident is None or len(self._resident.labels) < size:
                self._resident = Decoded(
                    torch.randint(256, (size, edge, edge, 3), dtype=torch.uint8, device=self._device),
                    torch.randint(self.num_classes, (size,), device=self._device),
                )
            yield Decoded(self._resident.pixels[:size], self._resident.labels[:size])
