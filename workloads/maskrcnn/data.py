"""Mask R-CNN's images with their boxes and outlines, scaled and flipped as the reference does (mlperf.md 12.3).

Shapes: N images, M boxes of an image, E edges of all their outlines, H by W pixels of the canvas that an image is on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ...datasets.formats.coco import CocoSet
from ...runner.core.errors import DataError
from ...runner.training.seeds import Seeds
from ...runner.training.workload import Batch, BatchSharding
from ..common.detection import image_kernels
from ..common.detection.data import CocoData, Files
from ..common.vision.decode_workers import EncodedBatch, View, stack_targets
from .masks import Outlines
from .model import MEANS

PAD_COLOR = tuple(round(mean) for mean in MEANS)  # beside an image: about 0 after the mean is taken off
_STRIDE = 32  # of the pyramid's coarsest map: a canvas must be so many pixels, times a whole number
_EDGES = 10  # of a side of a random rectangle: together about as many as COCO's outlines have
_SMALLEST = 1  # pixels: a box of which a side is no longer is empty to the reference


class MaskRCNNData(CocoData):
    """Whole images on canvases of two shapes, one for wide ones and one for the others, which no batch mixes.

    A training batch is what the model takes: pixels uint8 [N, 3, H, W], sizes int64 [N, 2] before padding, boxes
    float32 [N, M, 4], labels int64 [N, M] from 1 (0: no box), and the `Outlines` of the N * M objects. In evaluation
    it is pixels, sizes, and the images' numbers int64 [N] in the set.
    """

    masks = True

    @dataclass
    class Settings(CocoData.Settings):
        """An image's shorter edge becomes `short_edge`, less where the longer one would be above `long_edge`."""

        short_edge: int = 800
        long_edge: int = 1333

        def __post_init__(self) -> None:
            super().__post_init__()
            if not _STRIDE <= self.short_edge <= self.long_edge:
                raise ValueError(f"short_edge must be {_STRIDE} or more, long_edge no smaller.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.short_edge, self.long_edge = settings.short_edge, settings.long_edge
        self.image_size = self.short_edge
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)
        sizes, _ = self.train_plan(0)
        if not sizes:
            raise DataError(
                f"{sharding.ranks * sharding.accumulation} images of a shape, wide or not, are needed for a step, one for "
                "every micro-batch: train on fewer ranks, or on more images."
            )
        self.train_size, self.steps_per_epoch, self._most_samples = sum(sizes), len(sizes), max(sizes)

    @classmethod
    def seen(cls, whole: CocoSet, train: bool) -> CocoSet:
        """All images to be judged by; to be learned from, single objects that are not empty."""
        return whole.without_crowd().without_small(_SMALLEST).with_boxes() if train else whole

    def views(self, train: bool) -> "WholeViews":
        """Mirrored or not in training, else as they are."""
        if not train:
            return WholeViews(self.val_set, self.short_edge, self.long_edge)
        return TrainingViews(
            self.train_set, self.short_edge, self.long_edge, self.max_boxes, self._seeds.derive("data_order", 0)
        )

    def render(self, addresses: Tensor, batch: EncodedBatch) -> Tensor:
        """Scaled onto the canvas of the batch."""
        height, width = batch.sizes[0].tolist()
        shape = canvas(self.short_edge, self.long_edge, width > height)
        frames = (batch.sizes, batch.boxes, batch.flipped, batch.targets[0])
        return image_kernels.crop_and_resize(addresses, *frames, shape, PAD_COLOR, self._device)

    def train_plan(self, epoch: int) -> tuple[list[int], list[list[int]]]:
        """Samples of each global batch, and the image numbers of each of this rank's micro-batches, shuffled anew.

        Wide images are batched among themselves, as are the others. The last batch of either is left out where it is
        too small for every rank to have images in each micro-batch; the others are the same for any number of ranks.
        """
        random = np.random.default_rng(self._seeds.derive("data_order", epoch))
        batches = []
        for numbers in self._groups():
            order = random.permutation(numbers)
            batches += np.split(order, range(self.global_batch_size, len(order), self.global_batch_size))
        sizes, plan = [], []
        for place in random.permutation(len(batches)).tolist():
            size = len(batches[place])
            if size >= self._sharding.ranks * self._sharding.accumulation:
                sizes.append(size)
                plan += [batches[place][part].tolist() for part in self._sharding.micro_batches(size)]
        return sizes, plan

    def eval_plan(self) -> list[list[int]]:
        """This rank's share of the validation images in batches of wide images or others, each image once."""
        mine, most = self._sharding.shard(self.eval_size), self._settings.eval_batch_size
        wide, numbers = self.val_set.wide()[mine], np.arange(mine.start, mine.stop)
        groups = (numbers[wide].tolist(), numbers[~wide].tolist())
        return [group[start : start + most] for group in groups for start in range(0, len(group), most)]

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every image at most once, shuffled anew each epoch; equal for any number of ranks and workers."""
        sizes, plan = self.train_plan(epoch)
        views = self._views(True, epoch, plan)
        for size in sizes:
            parts = [next(views) for _ in range(self._sharding.accumulation)]
            yield [self._to_learn(part.pixels, part.targets, size) for part in parts]

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """Random pixels and rectangles in the shapes of the largest step, of wide images and of others."""
        most = self._most_samples
        parts, canvases = self._sharding.micro_batches(most), zip((True, False), self._groups(), strict=False)
        return [
            self._random(part.stop - part.start, most, wide) for wide, some in canvases if len(some) for part in parts
        ]

    def synthetic_eval_batch(self) -> Batch:
        """Random pixels in the shape of a whole evaluation batch of wide images, said to be of the first image."""
        size = self._first_eval_size()
        pixels, sizes = self._random_pixels(size, True)
        return self._on_device(pixels, (sizes, torch.zeros(size, dtype=torch.int64)), self.eval_size)

    def _random_pixels(self, size: int, wide: bool) -> tuple[Tensor, Tensor]:
        """And the images' sizes: those of COCO's most frequent one."""
        pixels = torch.randint(256, (size, *canvas(self.short_edge, self.long_edge, wide), 3), dtype=torch.uint8)
        height, width = (480, 640) if wide else (640, 480)
        return pixels, torch.tensor([scaled(height, width, self.short_edge, self.long_edge)] * size)

    def _random(self, size: int, global_samples: int, wide: bool = True) -> Batch:
        pixels, sizes = self._random_pixels(size, wide)
        low, extent = torch.rand(size, self.max_boxes, 2) * 0.5, torch.rand(size, self.max_boxes, 2) * 0.4 + 0.1
        boxes = torch.cat([low, low + extent], 2) * sizes.flip(1).repeat(1, 2)[:, None]
        labels = torch.randint(1, self.num_classes + 1, (size, self.max_boxes))
        return self._to_learn(pixels, (sizes, boxes, labels, *_rectangles(boxes.flatten(0, 1))), global_samples)

    def _groups(self) -> Sequence[NDArray[np.int64]]:
        """The training images' numbers: the wide ones and the others."""
        wide = self.train_set.wide()
        return np.flatnonzero(wide), np.flatnonzero(~wide)

    def _to_learn(self, pixels: Tensor, targets: Sequence[Tensor], global_samples: int) -> Batch:
        """Of sizes, boxes, labels and the outlines' three tensors."""
        batch = self._on_device(pixels, targets, global_samples)
        batch.inputs = (*batch.inputs[:4], Outlines(*batch.inputs[4:]))
        return batch


def canvas(short: int, long: int, wide: bool) -> tuple[int, int]:
    """Height and width in pixels of what wide images, or others, are put on."""
    low, high = (-(-edge // _STRIDE) * _STRIDE for edge in (short, long))
    return (low, high) if wide else (high, low)


def scaled(height: int, width: int, short: int, long: int) -> tuple[int, int]:
    """Height and width that an image gets, rounded as the reference rounds, and never above `long`."""
    low, high = min(height, width), max(height, width)
    if short * high > long * low:
        short = max(1, round(long * low / high))
    other = min(short * high // low, long)
    return (short, other) if height == low else (other, short)


def _rectangles(boxes: Tensor) -> Outlines:
    """Around boxes [I, 4], each side in several edges."""
    there = torch.arange(_EDGES) / _EDGES
    x = torch.cat([there, torch.ones(_EDGES), 1 - there, torch.zeros(_EDGES)])
    points = boxes[:, None, :2] + torch.stack([x, x.roll(_EDGES)], 1) * (boxes[:, None, 2:] - boxes[:, None, :2])
    edges = torch.cat([points, points.roll(-1, 1)], 2)
    last = torch.arange(1, 4 * _EDGES + 1) == 4 * _EDGES
    return Outlines(edges.flatten(0, 1), last.repeat(len(boxes)), torch.arange(len(boxes) + 1) * 4 * _EDGES)


@dataclass(frozen=True)
class WholeViews(Files):
    """Images scaled whole; the targets are the size int64 [2] (height, width) and the image's number, int64 []."""

    short: int
    long: int

    def view(self, number: int, height: int, width: int, epoch: int) -> View:
        """All of it."""
        self.check_size(number, height, width)
        size = np.array(scaled(height, width, self.short, self.long))
        return View((0, 0, height, width), False, (size, np.array(number)))

    def render(self, pixels: Tensor, view: View) -> Tensor:
        """Scaled as Pillow scales, antialiased and bilinear, at the top left of the canvas."""
        height, width = view.targets[0].tolist()
        image = pixels.permute(2, 0, 1)[None]
        small = F.interpolate(image, (height, width), mode="bilinear", antialias=True, align_corners=False)
        small = small[0].permute(1, 2, 0)
        shape = canvas(self.short, self.long, view.box[3] > view.box[2])
        out = torch.tensor(PAD_COLOR, dtype=torch.uint8).repeat(*shape, 1)
        out[:height, :width] = small.flip(1) if view.flipped else small
        return out

    def collate(self, targets: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Tensor, ...]:
        """Sizes int64 [N, 2] and numbers int64 [N]."""
        return stack_targets(targets)


@dataclass(frozen=True)
class TrainingViews(WholeViews):
    """Images flipped or not, with what is on them.

    The targets: size int64 [2]; boxes float32 [most, 4] in the scaled image's pixels, the right and the bottom one
    inclusive, and labels int64 [most] from 1, 0 where there are fewer; the outlines' edges float32 [E, 4], which of
    them end a polygon bool [E], and the edges of each object, int64 [most].
    """

    max_boxes: int
    seed: int

    def view(self, number: int, height: int, width: int, epoch: int) -> View:
        """Depends on seed, epoch and image alone."""
        whole = super().view(number, height, width, epoch)
        size = whole.targets[0]
        flipped = bool(np.random.default_rng((self.seed, epoch, number)).random() < 0.5)
        ratio = np.tile(size[::-1] / (width, height), 2)
        boxes, labels = np.zeros((self.max_boxes, 4), np.float32), np.zeros(self.max_boxes, np.int64)
        categories = self.coco.categories(number)
        boxes[: len(categories)] = self._corners(number, size, ratio, flipped)
        labels[: len(categories)] = categories + 1
        edges, last, counts = self._outlines(number)
        edges *= ratio.astype(np.float32)
        if flipped:
            edges[:, ::2] = size[1] - edges[:, ::2]
        return View(whole.box, flipped, (size, boxes, labels, edges, last, counts))

    def collate(self, targets: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Tensor, ...]:
        """Sizes, boxes and labels [N, ...], and the three tensors of `Outlines`."""
        same = stack_targets([each[:3] for each in targets])
        edges, last, counts = (np.concatenate(part) for part in zip(*(each[3:] for each in targets), strict=True))
        begin = np.concatenate([[0], np.cumsum(counts)])
        return *same, torch.from_numpy(edges), torch.from_numpy(last), torch.from_numpy(begin)

    def _corners(
        self, number: int, size: NDArray[np.int64], ratio: NDArray[np.float64], flipped: bool
    ) -> NDArray[np.float64]:
        """Left, top, right and bottom: the reference takes a pixel off the right and the bottom one, then scales."""
        corner, extent = np.split(self.coco.boxes(number).astype(np.float64), 2, axis=1)
        left, top, right, bottom = (np.concatenate([corner, corner + extent - 1], 1) * ratio).T
        if flipped:
            left, right = size[1] - right - 1, size[1] - left - 1
        boxes = np.stack([left, top, right, bottom], 1)
        return boxes.clip(0, np.tile(size[::-1], 2) - 1)

    def _outlines(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.int64]]:
        """Edges of an image's objects as they are in the set, which end a polygon, and each object's count [most]."""
        coco, counts = self.coco, np.zeros(self.max_boxes, np.int64)
        places = coco.of(number)
        found = [coco.edges(annotation) for annotation in range(places.start, places.stop)]
        counts[: len(found)] = [len(edges) for edges, _ in found]
        edges, last = (np.concatenate(part) for part in zip(*found, strict=True))
        return edges, last, counts
