"""CIFAR-10 whole on the device; crops and flips are gathered there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor
from torch.nn import functional as F

from ...datasets.formats import cifar
from ...datasets.synthetic import images
from ...datasets.synthetic.spec_digest import path_with_digest
from ...runner.training.workload import Batch
from ..common.vision.image_data import ImageData, SyntheticData
from .networks import MEAN


class CIFAR10Data(ImageData):
    """One rank's images: shifted by up to `crop_padding` pixels, flipped and partly covered at random, anew each epoch."""

    loader = "torch"
    image_size, num_classes = cifar.IMAGE_SIZE, cifar.NUM_CLASSES

    @dataclass
    class Settings:
        """The dataset and its augmentation."""

        folder: str = MISSING
        """Folder of the binary version of CIFAR-10."""
        generate: images.ClassificationSpec | None = None
        """Synthetic dataset to generate and read instead; null: none."""
        crop_padding: int = 4
        """Pixels of padding around an image before it is cropped at random."""
        cutout_size: int = 0
        """Edge in pixels of the square that is cut out of an image (DeVries and Taylor 2017); 0: none."""
        eval_batch_size: int = 1000
        """Images of an evaluation batch of one rank."""

        def __post_init__(self) -> None:
            if self.crop_padding < 0 or self.eval_batch_size < 1:
                raise ValueError("crop_padding must be 0 or more, eval_batch_size 1 or more.")
            if not 0 <= self.cutout_size <= cifar.IMAGE_SIZE:
                raise ValueError(f"cutout_size must be from 0 to {cifar.IMAGE_SIZE} pixels.")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._loaded: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def _open(self) -> tuple[int, int]:
        self._folder = Path(self._settings.folder)
        if self._settings.generate is not None:
            self._folder = path_with_digest(self._folder, self._settings.generate)
            if not self._folder.exists():
                images.write_cifar(self._folder, self._settings.generate)
        return cifar.count(self._folder, cifar.TRAIN_FILES), cifar.count(self._folder, cifar.VAL_FILES)

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every image once, shuffled and cropped anew each epoch; equal for any number of ranks."""
        pixels, labels, _, _ = self._load()
        generator = np.random.default_rng(self._seeds.derive("data_order", epoch))
        order = self._to_device(generator.permutation(self.train_size))
        shifts = self._to_device(generator.integers(0, 2 * self._settings.crop_padding + 1, (self.train_size, 2)))
        flipped = self._to_device(generator.random(self.train_size) < 0.5)
        corners = self._to_device(generator.integers(0, cifar.IMAGE_SIZE - self._settings.cutout_size + 1, (self.train_size, 2)))
        for size, parts in self._steps():
            step = []
            for part in parts:
                which = order[part]
                cut = _crop(pixels, which, shifts[which], flipped[which])
                if self._settings.cutout_size:
                    cut = _cover(cut, corners[which], self._settings.cutout_size)
                step.append(self._batch(cut, labels[which], size))
            yield step

    def eval_batches(self) -> Iterable[Batch]:
        """This rank's share of the test images, each once."""
        _, _, pixels, labels = self._load()
        for span in self._eval_spans():
            yield self._batch(pixels[span], labels[span], self.eval_size)

    def mlperf_params(self) -> dict[str, Any]:
        """The loader is on record."""
        return {"timetrial_loader": self.loader}

    def _load(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self._loaded is None:
            around, sets = [0, 0, *[self._settings.crop_padding] * 4], []
            for names, pad in ((cifar.TRAIN_FILES, True), (cifar.VAL_FILES, False)):
                pixels, labels = (self._to_device(part) for part in cifar.read(self._folder, names))
                sets += [F.pad(pixels, around) if pad else pixels, labels]
            self._loaded = sets[0], sets[1], sets[2], sets[3]
        return self._loaded

    def _to_device(self, array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


class SyntheticCIFAR10Data(SyntheticData, CIFAR10Data):
    """As many as CIFAR-10 has."""

    def _open(self) -> tuple[int, int]:
        return 50_000, 10_000


def _crop(padded: Tensor, which: Tensor, shifts: Tensor, flipped: Tensor) -> Tensor:
    """[N, 32, 32, 3] out of the padded images `which` [N], from `shifts` [N, 2] on, flipped where asked."""
    along = torch.arange(cifar.IMAGE_SIZE, device=which.device)
    columns = torch.where(flipped[:, None], cifar.IMAGE_SIZE - 1 - along, along) + shifts[:, 1:]
    rows = along + shifts[:, :1]
    return padded[which[:, None, None], rows[:, :, None], columns[:, None, :]]


def _cover(images: Tensor, corners: Tensor, edge: int) -> Tensor:
    """`images` [N, 32, 32, 3] with a square of the mean colour, its upper left corner at `corners` [N, 2]."""
    along = torch.arange(cifar.IMAGE_SIZE, device=images.device)
    rows, columns = ((along >= first) & (along < first + edge) for first in corners[:, :, None].unbind(1))
    covered = (rows[:, :, None] & columns[:, None, :])[..., None]
    return torch.where(covered, torch.tensor(MEAN, device=images.device).to(torch.uint8), images)
