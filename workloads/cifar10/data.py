"""CIFAR-10 whole on the device; crops and flips are gathered there."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor
from torch.nn import functional as F

from timetrial.datasets import cifar
from timetrial.datasets.generate import images
from timetrial.runner.seeds import Seeds
from timetrial.runner.workload import Batch, Share
from timetrial.workloads.cifar10.networks import MEANS


class ResidentImages:
    """One rank's images: shifted by up to `padding` pixels, mirrored and partly covered at random, anew each epoch."""

    loader: ClassVar[str] = "torch"

    @dataclass
    class Settings:
        """`folder` holds the binary version's files; `generate` makes it where it is absent.

        `cutout` is the edge in pixels of the square that is covered (DeVries and Taylor 2017), 0 for none.
        """

        folder: str = MISSING
        generate: images.Shapes | None = None
        padding: int = 4
        cutout: int = 0
        eval_batch_size: int = 1000

        def __post_init__(self) -> None:
            if self.padding < 0 or self.eval_batch_size < 1:
                raise ValueError("padding must be 0 or more, eval_batch_size 1 or more.")
            if not 0 <= self.cutout <= cifar.EDGE:
                raise ValueError(f"cutout must be from 0 to {cifar.EDGE} pixels.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, share: Share, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._share, self._device, self._seeds = settings, share, device, seeds
        self.global_batch_size, self.num_classes = global_batch_size, cifar.CLASSES
        self.train_size, self.eval_size = self._open()
        self._loaded: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def _open(self) -> tuple[int, int]:
        self._folder = Path(self._settings.folder)
        if self._settings.generate is not None:
            self._folder = images.path_of(self._folder, self._settings.generate)
            if not self._folder.exists():
                images.write_cifar(self._folder, self._settings.generate)
        return cifar.count(self._folder, cifar.TRAIN), cifar.count(self._folder, cifar.VAL)

    def train(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every image once, shuffled and cropped anew each epoch; equal for any number of ranks."""
        pixels, labels, _, _ = self._load()
        generator = np.random.default_rng(self._seeds.of("order", epoch))
        order = self._to_device(generator.permutation(self.train_size))
        shifts = self._to_device(generator.integers(0, 2 * self._settings.padding + 1, (self.train_size, 2)))
        mirrored = self._to_device(generator.random(self.train_size) < 0.5)
        corners = self._to_device(generator.integers(0, cifar.EDGE - self._settings.cutout + 1, (self.train_size, 2)))
        parts = self._share.ranks * self._share.accumulation
        for start in range(0, self.train_size, self.global_batch_size):
            size = min(self.global_batch_size, self.train_size - start)
            if size < parts:
                return  # too few for every rank to have one
            step = []
            for part in self._share.micro_batches(size):
                which = order[start + part.start : start + part.stop]
                cut = _crop(pixels, which, shifts[which], mirrored[which])
                if self._settings.cutout:
                    cut = _cover(cut, corners[which], self._settings.cutout)
                step.append(_batch(cut, labels[which], size))
            yield step

    def eval(self) -> Iterable[Batch]:
        """This rank's share of the test images, each once."""
        _, _, pixels, labels = self._load()
        mine, most = self._share.of(self.eval_size), self._settings.eval_batch_size
        for start in range(mine.start, mine.stop, most):
            span = slice(start, min(start + most, mine.stop))
            yield _batch(pixels[span], labels[span], self.eval_size)

    def synthetic_train(self) -> Sequence[Batch]:
        """Random pixels in the shapes of the first step."""
        samples = min(self.global_batch_size, self.train_size)
        return [self._random(part.stop - part.start, samples) for part in self._share.micro_batches(samples)]

    def synthetic_eval(self) -> Batch:
        """Random pixels in the shape of the first evaluation batch."""
        size = min(self._settings.eval_batch_size, max(1, self.eval_size // self._share.ranks))
        return self._random(size, size)

    def facts(self) -> dict[str, Any]:
        """The loader is on record."""
        return {"timetrial_loader": self.loader}

    def _load(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self._loaded is None:
            around, sets = [0, 0, *[self._settings.padding] * 4], []
            for names, pad in ((cifar.TRAIN, True), (cifar.VAL, False)):
                pixels, labels = (self._to_device(part) for part in cifar.read(self._folder, names))
                sets += [F.pad(pixels, around) if pad else pixels, labels]
            self._loaded = sets[0], sets[1], sets[2], sets[3]
        return self._loaded

    def _to_device(self, array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _random(self, size: int, global_samples: int) -> Batch:
        shape = (size, cifar.EDGE, cifar.EDGE, 3)
        pixels = torch.randint(256, shape, dtype=torch.uint8, device=self._device)
        return _batch(pixels, torch.randint(self.num_classes, (size,), device=self._device), global_samples)


class SyntheticImages(ResidentImages):
    """data=synthetic: random pixels that lie on the device, as many as CIFAR-10 has."""

    loader = "synthetic"

    def _open(self) -> tuple[int, int]:
        return 50_000, 10_000

    def train(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """The same batch again and again."""
        step = self.synthetic_train()
        return (step for _ in range(math.ceil(self.train_size / self.global_batch_size)))

    def eval(self) -> Iterable[Batch]:
        """The same batch again and again."""
        mine, batch = self._share.of(self.eval_size), self.synthetic_eval()
        return (batch for _ in range(mine.start, mine.stop, self._settings.eval_batch_size))


def _crop(padded: Tensor, which: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    """[N, 32, 32, 3] out of the padded images `which` [N], from `shifts` [N, 2] on, mirrored where asked."""
    along = torch.arange(cifar.EDGE, device=which.device)
    columns = torch.where(mirrored[:, None], cifar.EDGE - 1 - along, along) + shifts[:, 1:]
    rows = along + shifts[:, :1]
    return padded[which[:, None, None], rows[:, :, None], columns[:, None, :]]


def _cover(images: Tensor, corners: Tensor, edge: int) -> Tensor:
    """`images` [N, 32, 32, 3] with a square of the mean colour, its upper left corner at `corners` [N, 2]."""
    along = torch.arange(cifar.EDGE, device=images.device)
    rows, columns = ((along >= first) & (along < first + edge) for first in corners[:, :, None].unbind(1))
    covered = (rows[:, :, None] & columns[:, None, :])[..., None]
    return torch.where(covered, torch.tensor(MEANS, device=images.device).to(torch.uint8), images)


def _batch(pixels: Tensor, labels: Tensor, global_samples: int) -> Batch:
    return Batch((pixels.permute(0, 3, 1, 2), labels), len(labels), global_samples, global_samples)
