"""How one rank takes its share of labelled images, wherever they come from."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding


class ImageData:
    """Cuts an epoch and the evaluation into batches, and makes random pixels in their shapes.

    `settings` must have `eval_batch_size`. A subclass names `loader`, finds the images in `_open` and sets
    `num_classes` there, and writes `train` and `eval`; `image_size` is in pixels, `images_per_statistic` what a batch
    norm sees.
    """

    loader: ClassVar[str]
    image_size: int
    num_classes: int

    def __init__(
        self, settings: Any, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._sharding, self._device, self._seeds = settings, sharding, device, seeds
        self.global_batch_size = global_batch_size
        self.train_size, self.eval_size = self._open()
        self.steps_per_epoch = math.ceil(self.train_size / global_batch_size)
        self.images_per_statistic = math.ceil(global_batch_size / (sharding.ranks * sharding.accumulation))

    def train_plan(self, epoch: int) -> tuple[list[int], list[list[int]]]:
        """Samples of each global batch, and the image numbers of each of this rank's micro-batches, shuffled anew."""
        order = np.random.default_rng(self._seeds.derive("data_order", epoch)).permutation(self.train_size)
        sizes, plan = [], []
        for size, parts in self._steps():
            sizes.append(size)
            plan += [order[part].tolist() for part in parts]
        return sizes, plan

    def eval_plan(self) -> list[list[int]]:
        """This rank's share of the validation images in batches, each image once."""
        return [list(range(span.start, span.stop)) for span in self._eval_spans()]

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """Random pixels in the shapes of the first step."""
        samples = min(self.global_batch_size, self.train_size)
        return [self._random(part.stop - part.start, samples) for part in self._sharding.micro_batches(samples)]

    def synthetic_eval_batch(self) -> Batch:
        """Random pixels in the shape of the first evaluation batch."""
        size = self._first_eval_size()
        return self._random(size, size)

    def _first_eval_size(self) -> int:
        """Images of the first evaluation batch."""
        return min(self._settings.eval_batch_size, max(1, self.eval_size // self._sharding.ranks))

    def _open(self) -> tuple[int, int]:
        """Finds the images, without reading them; returns how many train and how many validate."""
        raise NotImplementedError

    def _steps(self) -> Iterator[tuple[int, list[slice]]]:
        """Of each global batch its size, and where in the epoch's order this rank's micro-batches lie."""
        for start in range(0, self.train_size, self.global_batch_size):
            size = min(self.global_batch_size, self.train_size - start)
            if size < self._sharding.ranks * self._sharding.accumulation:
                return  # too few for every rank to have one
            yield size, [slice(start + part.start, start + part.stop) for part in self._sharding.micro_batches(size)]

    def _eval_spans(self) -> list[slice]:
        """This rank's share of the validation images in batches, each image once."""
        mine, most = self._sharding.shard(self.eval_size), self._settings.eval_batch_size
        return [slice(start, min(start + most, mine.stop)) for start in range(mine.start, mine.stop, most)]

    def _batch(self, pixels: Tensor, labels: Tensor, global_samples: int) -> Batch:
        """Of pixels uint8 [N, height, width, 3], which lie so in memory and render [N, 3, height, width] to the model."""
        pixels = pixels.to(self._device, non_blocking=True).permute(0, 3, 1, 2)
        labels = labels.to(self._device, non_blocking=True)
        return Batch((pixels, labels), len(labels), global_samples, global_samples)

    def _random(self, size: int, global_samples: int) -> Batch:
        shape = (size, self.image_size, self.image_size, 3)
        pixels = torch.randint(256, shape, dtype=torch.uint8, device=self._device)
        return self._batch(pixels, torch.randint(self.num_classes, (size,), device=self._device), global_samples)


class SyntheticData(ImageData):
    """data=synthetic: one batch of random pixels again and again; nothing is read and nothing is learned."""

    loader = "synthetic"

    @functools.cached_property
    def step(self) -> Sequence[Batch]:
        """What every step trains on; making it takes longer than a step does."""
        return self.synthetic_train_batches()

    @functools.cached_property
    def batch(self) -> Batch:
        """What every batch of an evaluation is."""
        return self.synthetic_eval_batch()

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """As many steps as an epoch has."""
        return (self.step for _ in range(self.steps_per_epoch))

    def eval_batches(self) -> Iterable[Batch]:
        """As many batches as the evaluation has."""
        return (self.batch for _ in self._eval_spans())
