"""CIFAR-10, whole on the device, where images are cropped, flipped and covered."""

from collections.abc import Callable, Iterator, Sequence
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
from ...runner.core.progress import ProgressCallback
from ...runner.training.workload import Batch
from ..common.manifest import manifest_path, read_manifest, write_manifest
from ..common.vision.batches import ImageBatch
from ..common.vision.image_data import BatchSource, ImageData, SyntheticBatches
from .networks import MEAN

_FIT_IMAGES = 2000  # that `fit` gets


class CIFAR10Data(ImageData):
    """One rank's images: random crops after padding, random flips and cutout."""

    loader = "torch"
    dataset_keys = ("folder",)
    image_size, num_classes = cifar.IMAGE_SIZE, cifar.NUM_CLASSES
    fit: Callable[[Tensor], None] | None = None
    """Called with the first training images, uint8 [N, 32, 32, 3] on the device, as soon as they are open."""

    @dataclass
    class Settings:
        """The dataset and its augmentation."""

        folder: str = MISSING
        """Folder of the binary version of CIFAR-10."""
        generate: images.ClassificationSpec | None = None
        """Synthetic dataset to generate and read instead; null: none."""
        cache_dir: str = MISSING
        """Folder of the manifest."""
        crop_padding: int = 4
        """Pixels of padding around an image before it is cropped at random."""
        reflect_padding: bool = False
        """Whether the padding mirrors the image; false: it is black."""
        alternate_flips: bool = False
        """Flip each image in every other epoch, beginning at random with the first or the second (Jordan 2024); false:
        flip at random in each epoch."""
        cutout_size: int = 0
        """Edge in pixels of the square that is cut out of an image (DeVries and Taylor 2017); 0: none."""
        eval_batch_size: int = 1000
        """Images of an evaluation batch of one rank."""

        def __post_init__(self) -> None:
            if not 0 <= self.crop_padding < cifar.IMAGE_SIZE or self.eval_batch_size < 1:
                raise ValueError(f"crop_padding must be from 0 to {cifar.IMAGE_SIZE - 1}, eval_batch_size 1 or more.")
            if not 0 <= self.cutout_size <= cifar.IMAGE_SIZE:
                raise ValueError(f"cutout_size must be from 0 to {cifar.IMAGE_SIZE} pixels.")

    def mlperf_params(self) -> dict[str, Any]:
        """Return the loader, which MLPerf does not ask for."""
        return {"timetrial_loader": self.loader}

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Generate the set if asked to, and store a manifest."""
        folder = _folder(settings)
        if settings.generate is not None and not folder.exists():
            images.write_cifar(folder, settings.generate)
        sizes = {"train_size": cifar.TRAIN_FILES, "eval_size": cifar.VAL_FILES}
        counts = {key: cifar.count(folder, files) for key, files in sizes.items()}
        write_manifest(_manifest_path(settings), counts)

    @classmethod
    def prepared_content(cls, settings: Settings) -> Iterator[Path | bytes]:
        """Yield the dataset's files."""
        folder = _folder(settings)
        yield from (folder / name for name in (*cifar.TRAIN_FILES, *cifar.VAL_FILES))

    def _read_sizes(self) -> tuple[int, int]:
        self.folder = _folder(self.settings)
        manifest = read_manifest(_manifest_path(self.settings))
        return manifest["train_size"], manifest["eval_size"]

    def warm_up_steps(self) -> Iterator[Sequence[Batch]]:
        """Also fit the network to random images, which the warm-up takes back."""
        if self.fit is not None:
            shape = (min(_FIT_IMAGES, self.train_size), cifar.IMAGE_SIZE, cifar.IMAGE_SIZE, 3)
            self.fit(torch.randint(256, shape, dtype=torch.uint8, device=self.device))
        yield from super().warm_up_steps()

    def _build_batch_source(self) -> BatchSource:
        return ResidentBatches(self.folder, self.settings, self.device)


class ResidentBatches:
    """Takes batches from the images, all of which it reads and puts on the device."""

    def __init__(self, folder: Path, settings: CIFAR10Data.Settings, device: torch.device) -> None:
        self._folder, self._settings, self._device = folder, settings, device

    def open(self, data: ImageData) -> None:
        """Read all images, and fit the network to the first ones if it wants that."""
        assert isinstance(data, CIFAR10Data)
        pixels, self._train_labels = self._read(cifar.TRAIN_FILES)
        padding = self._settings.crop_padding
        if self._settings.reflect_padding:
            mirrored = reflected_range(-padding, cifar.IMAGE_SIZE + padding).to(self._device)
            self._padded_pixels = pixels[:, mirrored][:, :, mirrored]
        else:
            self._padded_pixels = F.pad(pixels, [0, 0, *[padding] * 4])
        self._eval_pixels, self._eval_labels = self._read(cifar.VAL_FILES)
        self._mean_color = torch.tensor(MEAN, device=self._device).to(torch.uint8)
        if data.fit is not None:
            data.fit(self.first_images(_FIT_IMAGES))

    def first_images(self, count: int) -> Tensor:
        """Return the first training images as they are in the files, uint8 [N, 32, 32, 3]; at most `count`."""
        rows = slice(self._settings.crop_padding, self._settings.crop_padding + cifar.IMAGE_SIZE)
        return self._padded_pixels[:count, rows, rows]

    def train_batches(self, data: ImageData, epoch: int) -> Iterator[Sequence[Batch]]:
        """Yield all images, shuffled and transformed at random; an epoch is the same for any number of ranks."""
        settings, count = self._settings, data.train_size
        generator = np.random.default_rng(data.seeds.derive("data_order", epoch))
        order = self._to_device(data.pad(generator.permutation(count)))
        shifts = self._to_device(generator.integers(0, 2 * settings.crop_padding + 1, (count, 2)))
        flipped = generator.random(count) < 0.5
        if settings.alternate_flips:
            first = np.random.default_rng(data.seeds.derive("data_order", 0)).random(count) < 0.5
            flipped = first ^ (epoch % 2 == 0)
        corners = self._to_device(generator.integers(0, cifar.IMAGE_SIZE - settings.cutout_size + 1, (count, 2)))
        flips = self._to_device(flipped)
        for parts in data.steps():
            step = []
            for part in parts:
                indices = order[part]
                crops = _crop(self._padded_pixels, indices, shifts[indices], flips[indices])
                if settings.cutout_size:
                    crops = _cut_out(crops, corners[indices], settings.cutout_size, self._mean_color)
                step.append(data.make_batch(ImageBatch(crops, (self._train_labels[indices],)), data.step_size))
            yield step

    def eval_batches(self, data: ImageData) -> Iterator[Batch]:
        """Yield this rank's shard of the test images, each once."""
        for span in data.eval_spans():
            images = ImageBatch(self._eval_pixels[span], (self._eval_labels[span],))
            yield data.make_batch(images, data.eval_size)

    def _read(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """Return pixels uint8 [N, 32, 32, 3] and classes int64 [N] on the device, which orders pixels faster."""
        pixels, labels = cifar.split(self._to_device(cifar.read(self._folder, names)))
        return pixels.permute(0, 2, 3, 1).contiguous(), labels.long()

    def _to_device(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._device)


class SyntheticCIFAR10Data(CIFAR10Data):
    """data=synthetic: random images, as many as CIFAR-10 has; nothing is read or learned."""

    loader = "synthetic"

    @classmethod
    def prepare_data(cls, settings: CIFAR10Data.Settings, progress: ProgressCallback) -> None:
        """Do nothing: there is no dataset."""

    def _read_sizes(self) -> tuple[int, int]:
        return 50_000, 10_000

    def _build_batch_source(self) -> SyntheticBatches:
        return SyntheticBatches()


def reflected_range(start: int, stop: int) -> Tensor:
    """Return the pixels of an image that continues as its mirror image, from place `start` to before `stop`."""
    last = cifar.IMAGE_SIZE - 1
    return last - (last - torch.arange(start, stop).abs()).abs()


def _folder(settings: CIFAR10Data.Settings) -> Path:
    """Return the folder of the dataset, generated or not."""
    folder = Path(settings.folder)
    return folder if settings.generate is None else path_with_digest(folder, settings.generate)


def _manifest_path(settings: CIFAR10Data.Settings) -> Path:
    return manifest_path(settings.cache_dir, "cifar10", _folder(settings))


def _crop(padded: Tensor, indices: Tensor, shifts: Tensor, flipped: Tensor) -> Tensor:
    """Crop the padded images at `indices` [N] to [N, 32, 32, 3], from `shifts` [N, 2] on, and flip some of them."""
    pixel = torch.arange(cifar.IMAGE_SIZE, device=indices.device)
    columns = torch.where(flipped[:, None], cifar.IMAGE_SIZE - 1 - pixel, pixel) + shifts[:, 1:]
    rows = pixel + shifts[:, :1]
    return padded[indices[:, None, None], rows[:, :, None], columns[:, None, :]]


def _cut_out(pixels: Tensor, corners: Tensor, edge: int, color: Tensor) -> Tensor:
    """Cover a square of each image [N, 32, 32, 3] with `color` [3], its top left corner at `corners` [N, 2]."""
    pixel = torch.arange(cifar.IMAGE_SIZE, device=pixels.device)
    rows, columns = ((pixel >= first) & (pixel < first + edge) for first in corners[:, :, None].unbind(1))
    covered = (rows[:, :, None] & columns[:, None, :])[..., None]
    return torch.where(covered, color, pixels)
