"""Mask R-CNN's data: images on canvases of two shapes, with boxes and outlines (docs/mlperf_rules.md, "Mask R-CNN")."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ...datasets.formats.coco import CocoSet
from ...runner.training.seeds import Seeds
from ...runner.training.workload import Batch, BatchSharding
from ..common.detection.data import CocoData
from ..common.vision.batches import ImageBatch
from .masks import Outlines
from .transforms import CANVAS_STRIDE, EvalTransform, TrainTransform, canvas_size, scaled_size

_EMPTY_SIDE = 1  # pixels: the reference treats a box with a side this short, or shorter, as empty


class MaskRCNNData(CocoData):
    """Whole images on canvases of two shapes, for wide images and for the others; a batch holds one shape.

    The inputs of a training batch are pixels uint8 [N, 3, H, W], sizes int64 [N, 2] before padding, boxes float32
    [N, M, 4], labels int64 [N, M] from 1 (0: no box), and the `Outlines` of the N * M objects. In evaluation they are
    pixels, sizes, and the images' indices int64 [N] in `val_set`.
    """

    masks = True
    eval_groups = 2

    @dataclass
    class Settings(CocoData.Settings):
        """Size of the images."""

        short_edge: int = 800
        """Length in pixels that the shorter edge of an image is scaled to."""
        long_edge: int = 1333
        """Largest length of the longer edge in pixels; it limits the scale."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not CANVAS_STRIDE <= self.short_edge <= self.long_edge:
                raise ValueError(f"short_edge must be {CANVAS_STRIDE} or more, long_edge no smaller.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.short_edge, self.long_edge = settings.short_edge, settings.long_edge
        self.image_size = self.short_edge
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)
        self.max_edges = self._read_max_edges()
        self.steps_per_epoch = sum(math.ceil(images / self.step_size) for images in self._aspect_group_sizes())

    @classmethod
    def _count(cls, train: CocoSet, val: CocoSet) -> dict[str, Any]:
        """Count wide images of both sets and the edges of the outlines of a training image too."""
        selected, evaluated = cls.select_images(train, True), cls.select_images(val, False)
        return super()._count(train, val) | {
            "wide": int(selected.is_wide().sum()),
            "eval_wide": int(evaluated.is_wide().sum()),
            "max_edges": max(4, int(selected.count_edges().max())),  # of a random rectangle, in the warm-up
        }

    @classmethod
    def select_images(cls, dataset: CocoSet, train: bool) -> CocoSet:
        """Return all images for evaluation, and for training those with single objects that are not empty."""
        return dataset.without_crowd().without_small(_EMPTY_SIDE).with_boxes() if train else dataset

    def build_transform(self, train: bool) -> EvalTransform:
        """Return random flips for training, unchanged images for evaluation."""
        if train:
            return TrainTransform(self.short_edge, self.long_edge, self.max_boxes, self.max_edges)
        return EvalTransform(self.short_edge, self.long_edge)

    def train_plan(self, epoch: int) -> list[list[int]]:
        """Return the image indices of each micro-batch of this rank, shuffled.

        Wide images are batched among themselves, as are the others. The last batch of either is padded with the first
        images of its order.
        """
        generator = np.random.default_rng(self.seeds.derive("data_order", epoch))
        batches = []
        for indices in self._aspect_groups():
            order, steps = generator.permutation(indices), math.ceil(len(indices) / self.step_size)
            batches += list(np.resize(order, (steps, self.step_size)))
        parts = self.sharding.micro_batches(self.step_size)
        numbers = generator.permutation(len(batches)).tolist()
        return [batches[number][part].tolist() for number in numbers for part in parts]

    def eval_plan(self) -> list[list[int]]:
        """Return the image indices of this rank's evaluation batches, of wide images or of others, each image once."""
        shard, size = self.sharding.shard(self.eval_size), self.settings.eval_batch_size
        wide, indices = self.val_set.is_wide()[shard], np.arange(shard.start, shard.stop)
        groups = (indices[wide].tolist(), indices[~wide].tolist())
        return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

    def make_batch(self, images: ImageBatch, global_samples: int) -> Batch:
        """Return a batch on the device; in training its last three tensors become `Outlines`."""
        batch = super().make_batch(images, global_samples)
        pixels, sizes, *targets = batch.inputs
        if len(targets) > 1:
            boxes, labels, *outlines = targets
            batch.inputs = (pixels, sizes, boxes, labels, Outlines(*outlines))
        return batch

    def random_steps(self) -> Iterator[Sequence[Batch]]:
        """Yield random images and rectangles: a step of wide images and one of others, if the training set has them."""
        for wide in self._canvases():
            images = [self._random_train_images(size, wide) for size in self._micro_batch_sizes()]
            yield [self.make_batch(each, self.step_size) for each in images]

    def warm_up_eval_batches(self) -> Iterator[Batch]:
        """Yield a batch of wide images and one of others, if the training set has them, and then the partial batches.

        Their shapes are known for one rank.
        """
        size, canvases = self.settings.eval_batch_size, self._canvases()
        for wide in canvases:
            yield self.make_batch(self._random_eval_images(self._eval_step_size(), wide), self.eval_size)
        for wide, images in zip((True, False), self._eval_group_sizes(), strict=False):
            sizes = {min(size, images - start) for start in range(0, images, size)}
            for other in sorted(sizes - ({self._eval_step_size()} if wide in canvases else set())):
                batch = self.make_batch(self._random_eval_images(other, wide), self.eval_size)
                yield replace(batch, is_partial=True)

    def _random_train_images(self, size: int, wide: bool = True) -> ImageBatch:
        pixels, sizes = self._random_pixels(size, wide)
        corner, box_size = torch.rand(size, self.max_boxes, 2) * 0.5, torch.rand(size, self.max_boxes, 2) * 0.4 + 0.1
        boxes = torch.cat([corner, corner + box_size], 2) * sizes.flip(1).repeat(1, 2)[:, None]
        labels = torch.randint(1, self.num_classes + 1, (size, self.max_boxes))
        outlines = _rectangles(boxes.flatten(0, 1), size * self.max_edges)
        return ImageBatch(pixels, (sizes, boxes, labels, *outlines))

    def _random_eval_images(self, size: int, wide: bool = True) -> ImageBatch:
        """Return random pixels, all with the index of the first image."""
        pixels, sizes = self._random_pixels(size, wide)
        return ImageBatch(pixels, (sizes, torch.zeros(size, dtype=torch.int64)))

    def _random_pixels(self, size: int, wide: bool) -> tuple[Tensor, Tensor]:
        """Return random pixels, and for each image the scaled size of COCO's most frequent one."""
        shape = canvas_size(self.short_edge, self.long_edge, wide)
        pixels = torch.randint(256, (size, *shape, 3), dtype=torch.uint8, device=self.device)
        height, width = (480, 640) if wide else (640, 480)
        return pixels, torch.tensor([scaled_size(height, width, self.short_edge, self.long_edge)] * size)

    def _canvases(self) -> list[bool]:
        """Return True if there are wide training images, and False if there are others."""
        return [wide for wide, images in zip((True, False), self._aspect_group_sizes(), strict=False) if images]

    def _read_max_edges(self) -> int:
        """Return the largest number of edges of the outlines of a training image."""
        return int(self.counts["max_edges"])

    def _aspect_group_sizes(self) -> Sequence[int]:
        """Return the number of wide training images, and of the others."""
        return self.counts["wide"], self.counts["train_size"] - self.counts["wide"]

    def _eval_group_sizes(self) -> Sequence[int]:
        """Return the number of wide validation images, and of the others, or nothing on several ranks."""
        wide = self.counts["eval_wide"]
        return (wide, self.eval_size - wide) if self.sharding.ranks == 1 else ()

    def _aspect_groups(self) -> Sequence[NDArray[np.int64]]:
        """Return the indices of the wide training images, and of the others."""
        wide = self.train_set.is_wide()
        return np.flatnonzero(wide), np.flatnonzero(~wide)


def _rectangles(boxes: Tensor, size: int) -> Outlines:
    """Return outlines along boxes [I, 4], with the same number of edges each and padded to `size` edges."""
    edges_per_box = size // len(boxes)
    along = torch.arange(edges_per_box) / max(1, edges_per_box) * 4  # from corner to corner of the unit square
    x, y = ((along + shift).remainder(4) for shift in (0, 3))
    corners = torch.stack([torch.minimum(x, 3 - x).clamp(0, 1), torch.minimum(y, 3 - y).clamp(0, 1)], 1)
    points = boxes[:, None, :2] + corners * (boxes[:, None, 2:] - boxes[:, None, :2])
    edges = torch.cat([points, points.roll(-1, 1)], 2)
    last = (torch.arange(edges_per_box) == edges_per_box - 1).repeat(len(boxes))
    padding = size - len(last)
    begin = torch.arange(len(boxes) + 1) * edges_per_box
    return Outlines(F.pad(edges.flatten(0, 1), (0, 0, 0, padding)), F.pad(last, (0, padding)), begin)
