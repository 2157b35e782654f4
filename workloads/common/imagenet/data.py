"""ResNet-50's images: what every loader has in common. The loaders differ only in who decodes and resizes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor
from torch.nn import functional as F

from ....datasets.formats import imagenet
from ....datasets.formats.imagenet import ImageSet
from ....datasets.synthetic import images
from ....datasets.synthetic.spec_digest import path_with_digest
from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding
from ..vision import gpu_decode
from ..vision.decode_workers import DecodedBatch, Plan, View, WorkerReader, stack_targets, worker_count
from ..vision.image_data import ImageData
from . import crops


class ImageNetData(ImageData):
    """One rank's images; a random crop depends on seed, epoch and image alone. A loader overrides `_pixels`."""

    @dataclass
    class Settings:
        """The dataset and how it is read."""

        folder: str = MISSING
        """Folder with `train/` and `val/`, each of class folders, TFRecord shards or WebDataset shards."""
        generate: images.ClassificationSpec | None = None
        """Synthetic dataset to generate and read instead; null: none."""
        image_size: int = 224
        """Edge of a cropped image in pixels."""
        min_crop_area: float = 0.1
        """Smallest area of a random crop as a fraction of the image. MLPerf samples from 0.05, but a crop must cover
        0.1 of the image."""
        eval_batch_size: int = 256
        """Images of an evaluation batch of one rank."""
        workers: int | None = None
        """Decoding processes of a rank; 0: none; null: one for each of the rank's cores."""

        def __post_init__(self) -> None:
            if self.image_size < 32 or self.eval_batch_size < 1:
                raise ValueError("image_size must be 32 or more, eval_batch_size 1 or more.")
            if not 0 < self.min_crop_area <= 1 or (self.workers is not None and self.workers < 0):
                raise ValueError("min_crop_area must be above 0 and at most 1, workers 0 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.image_size = settings.image_size
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)
        self._readers = self._start_readers()

    def _open(self) -> tuple[int, int]:
        folder = Path(self._settings.folder)
        if self._settings.generate is not None:
            folder = path_with_digest(folder, self._settings.generate)
            if not folder.exists():
                images.write_images(folder, self._settings.generate)
        self._train, self._val, self.num_classes, self._form = imagenet.open_sets(folder)
        return len(self._train), len(self._val)

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every image once, shuffled and cropped anew each epoch; equal for any number of ranks and workers."""
        sizes, plan = self.train_plan(epoch)
        pixels = self._pixels(True, epoch, plan)
        for size in sizes:
            parts = [next(pixels) for _ in range(self._sharding.accumulation)]
            yield [self._batch(part.pixels, part.targets[0], size) for part in parts]

    def eval_batches(self) -> Iterable[Batch]:
        """This rank's share of the validation images, each once."""
        for decoded in self._pixels(False, 0, self.eval_plan()):
            yield self._batch(decoded.pixels, decoded.targets[0], self.eval_size)

    def mlperf_params(self) -> dict[str, Any]:
        """What MLPerf does not ask for: the loader and the form of the data are on record."""
        return {
            "timetrial_loader": self.loader,
            "timetrial_data_form": self._form,
            "timetrial_image_size": self.image_size,
        }

    def encoded(self, train: bool, epoch: int, plan: Plan) -> Iterator[Any]:
        """The batches of `plan` as the reading processes make them: `EncodedBatch`, or `DecodedBatch` where they decode too."""
        return self._readers[train].read(epoch, plan)

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        """The batches of `plan` as pixels, on the device or on their way to it."""
        raise NotImplementedError

    def _readers_decode(self) -> bool:
        """Whether the reading processes make the pixels."""
        return False

    def _start_readers(self) -> dict[bool, WorkerReader]:
        """For training (True) and evaluation."""
        return {
            train: WorkerReader(
                ImageNetViews(
                    self._train if train else self._val,
                    self.image_size,
                    self._settings.min_crop_area if train else None,
                    self._seeds.derive("data_order", 0),
                ),
                workers=worker_count(self._settings.workers, self._sharding.ranks),
                decode=self._readers_decode(),
                pin=gpu_decode.is_supported(self._device),
            )
            for train in (True, False)
        }


@dataclass(frozen=True)
class ImageNetViews:
    """One set as ResNet-50 sees it: random crops of at least `min_crop_area`, flipped or not; None takes the centre."""

    images: ImageSet
    size: int
    min_crop_area: float | None
    seed: int
    collate = staticmethod(stack_targets)

    def name(self, number: int) -> str:
        """What to call image `number` in a message."""
        return self.images.name(number)

    def read(self, number: int) -> bytes:
        """The encoded image."""
        return self.images.read(number)

    def view(self, number: int, height: int, width: int, epoch: int) -> View:
        """A crop that depends on seed, epoch and image alone; the target is the label, int64 []."""
        label = (self.images.label[number],)
        if self.min_crop_area is None:
            return View(crops.center_crop_box(height, width), False, label)
        generator = np.random.default_rng((self.seed, epoch, number))
        box = crops.random_crop_box(height, width, self.min_crop_area, generator)
        return View(box, bool(generator.random() < 0.5), label)

    def render(self, pixels: Tensor, view: View) -> Tensor:
        """The crop, resized to the square."""
        top, left, tall, wide = view.box
        small = resize(pixels[top : top + tall, left : left + wide], self.size)
        return small.flip(1) if view.flipped else small


def resize(pixels: Tensor, size: int) -> Tensor:
    """uint8 [height, width, 3] to [size, size, 3]: bilinear between pixel centres, no antialiasing (mlperf.md 12.1)."""
    image = pixels.permute(2, 0, 1)[None]
    if image.shape[-2:] != (size, size):
        image = F.interpolate(image, (size, size), mode="bilinear", align_corners=False)
    return image[0].permute(1, 2, 0)
