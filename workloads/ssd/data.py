"""SSD's images with their boxes: cropped, flipped, shrunk and recoloured as the reference does (mlperf.md 12.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ...datasets.formats.coco import CocoSet
from ...runner.training.seeds import Seeds
from ...runner.training.workload import Batch, BatchSharding
from ..common.detection import image_kernels
from ..common.detection.data import CocoData, Files
from ..common.vision.decode_workers import EncodedBatch, View, stack_targets
from . import color_jitter, crops, kernels


class SSDData(CocoData):
    """Whole images shrunk to a square; those without a box are not trained on and not looked at."""

    @dataclass
    class Settings(CocoData.Settings):
        """Size and cropping of the images."""

        image_size: int = 300
        """Edge of the square images in pixels."""
        crop_attempts: int = 1
        """Random crops that are tried before another crop option is drawn: 1 or 50."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.image_size < 32 or self.crop_attempts < 1:
                raise ValueError("image_size must be 32 or more, crop_attempts 1 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.image_size, self.crop_attempts = settings.image_size, settings.crop_attempts
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)

    @classmethod
    def seen(cls, whole: CocoSet, train: bool) -> CocoSet:
        """The images with a box."""
        return whole.with_boxes()

    def views(self, train: bool) -> "WholeViews":
        """Crops in training, else whole images."""
        if not train:
            return WholeViews(self.val_set, self.image_size)
        return TrainingViews(
            self.train_set, self.image_size, self.max_boxes, self.crop_attempts, self._seeds.derive("data_order", 0)
        )

    def render(self, addresses: Tensor, batch: EncodedBatch) -> Tensor:
        """Cut out and shrunk; for training, in other colours."""
        square = (self.image_size, self.image_size)
        pixels = image_kernels.crop_and_resize(
            addresses, batch.sizes, batch.boxes, batch.flipped, torch.tensor([square] * len(addresses)), square,
            (0, 0, 0), self._device,
        )  # fmt: skip
        if len(batch.targets) == 1:
            return pixels
        factors, order = (target.to(self._device) for target in batch.targets[2:])
        return kernels.jitter(pixels, factors, order)

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every image once, shuffled and cropped anew each epoch; equal for any number of ranks and workers."""
        sizes, plan = self.train_plan(epoch)
        views = self._views(True, epoch, plan)
        for size in sizes:
            parts = [next(views) for _ in range(self._sharding.accumulation)]
            yield [self._on_device(part.pixels, part.targets[:2], size) for part in parts]

    def synthetic_eval_batch(self) -> Batch:
        """Random pixels in the shape of the first evaluation batch, said to be of the first image."""
        size = self._first_eval_size()
        return self._on_device(self._random_pixels(size), (torch.zeros(size, dtype=torch.int64),), self.eval_size)

    def _random_pixels(self, size: int) -> Tensor:
        return torch.randint(256, (size, self.image_size, self.image_size, 3), dtype=torch.uint8)

    def _random(self, size: int, global_samples: int) -> Batch:
        low, extent = torch.rand(size, self.max_boxes, 2) * 0.5, torch.rand(size, self.max_boxes, 2) * 0.4 + 0.1
        labels = torch.randint(1, self.num_classes + 1, (size, self.max_boxes))
        targets = (torch.cat([low, low + extent], 2), labels)
        return self._on_device(self._random_pixels(size), targets, global_samples)


@dataclass(frozen=True)
class WholeViews(Files):
    """Images shrunk whole; the target is the image's number, int64 []."""

    size: int
    collate = staticmethod(stack_targets)

    def view(self, number: int, height: int, width: int, epoch: int) -> View:
        """All of it."""
        self.check_size(number, height, width)
        return View((0, 0, height, width), False, (np.array(number),))

    def render(self, pixels: Tensor, view: View) -> Tensor:
        """Shrunk as Pillow shrinks: antialiased, bilinear."""
        top, left, tall, wide = view.box
        image = pixels[top : top + tall, left : left + wide].permute(2, 0, 1)[None]
        small = F.interpolate(image, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        small = small[0].permute(1, 2, 0)
        return small.flip(1) if view.flipped else small


@dataclass(frozen=True)
class TrainingViews(WholeViews):
    """Random crops, flipped or not, in other colours.

    The targets: boxes as fractions of the crop float32 [most, 4] (left, top, right, bottom) and labels int64 [most]
    from 1, 0 where there are fewer; factors float32 [4] and order int64 [4] of the colours (`color_jitter.py`).
    """

    max_boxes: int
    tries: int
    seed: int

    def view(self, number: int, height: int, width: int, epoch: int) -> View:
        """Depends on seed, epoch and image alone."""
        self.check_size(number, height, width)
        generator = np.random.default_rng((self.seed, epoch, number))
        boxes, labels = self.boxes(number)
        (left, top, right, bottom), kept, boxes = crops.crop(boxes, generator, self.tries)
        flipped = bool(generator.random() < 0.5)
        if flipped:
            boxes = np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], 1)
        factors, order = color_jitter.jitter_factors(generator)
        low, high = (int(top * height), int(left * width)), (int(bottom * height), int(right * width))
        box = (*low, max(1, high[0] - low[0]), max(1, high[1] - low[1]))
        targets = (
            _filled(boxes.astype(np.float32), self.max_boxes),
            _filled(labels[kept], self.max_boxes),
            np.array(factors, dtype=np.float32),
            np.array(order, dtype=np.int64),
        )
        return View(box, flipped, targets)

    def render(self, pixels: Tensor, view: View) -> Tensor:
        """Cut out, shrunk, flipped, and in other colours."""
        factors, order = view.targets[2:]
        return color_jitter.jitter_one(super().render(pixels, view).contiguous(), factors.tolist(), order.tolist())


def _filled(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """`rows` with zeros after them: [most, ...]."""
    return np.concatenate([rows, np.zeros((most - len(rows), *rows.shape[1:]), rows.dtype)])
