"""ResNet-50's images by torch: worker processes read, decode and crop; the device normalises."""

import math
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as vision

from timetrial.datasets import imagenet
from timetrial.datasets.generate import images
from timetrial.datasets.imagenet import ImageSet
from timetrial.runner.errors import DataError
from timetrial.runner.seeds import Seeds
from timetrial.runner.workload import Batch, Share

MEANS = (123.68, 116.78, 103.94)  # RGB, of pixels from 0 to 255; MLPerf's references divide by no deviation
_MOST_WORKERS = 16  # a rank: beyond that, processes are in each other's way
_TRIES = 100  # of a random crop, before the whole image is taken
_ASPECT = (0.75, 1.33)


class ImageFolder:
    """One rank's images out of class folders; a random crop depends on seed, epoch and image alone."""

    @dataclass
    class Settings:
        """`train` and `val` hold a folder a class; `generate` makes them where they are absent; sizes in pixels.

        `workers` is the number of reading processes of a rank, 0 for none and null for as many as its cores.
        """

        folder: str = MISSING
        generate: images.Shapes | None = None
        image_size: int = 224
        least_area: float = 0.1  # of a crop: MLPerf draws from 0.05, but a crop must cover 0.1 of the image
        eval_batch_size: int = 256
        workers: int | None = None

        def __post_init__(self) -> None:
            if self.image_size < 32 or self.eval_batch_size < 1 or (self.workers is not None and self.workers < 0):
                raise ValueError("image_size must be 32 or more, eval_batch_size 1 or more, workers 0 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, share: Share, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._share, self._device, self._seeds = settings, share, device, seeds
        self._global_batch_size = global_batch_size
        folder = Path(settings.folder)
        if settings.generate is not None:
            folder = images.path_of(folder, settings.generate)
            if not folder.exists():
                images.write_images(folder, settings.generate)
        self._train, self._val, classes = imagenet.read_folders(folder / "train", folder / "val")
        self.num_classes, self.train_size, self.eval_size = len(classes), len(self._train), len(self._val)
        self.steps_per_epoch = math.ceil(self.train_size / global_batch_size)
        self.images_per_statistic = math.ceil(global_batch_size / (share.ranks * share.accumulation))
        self._loaders: dict[bool, DataLoader[Any]] = {}
        self._means = torch.tensor(MEANS, device=device).view(1, 3, 1, 1)

    def train(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every image once, shuffled and cropped anew each epoch; equal for any number of ranks and workers."""
        order = np.random.default_rng(self._seeds.of("order", epoch)).permutation(self.train_size)
        parts, plan, sizes = self._share.ranks * self._share.accumulation, [], []
        for start in range(0, self.train_size, self._global_batch_size):
            batch = order[start : start + self._global_batch_size]
            if len(batch) < parts:
                break  # too few for every rank to have one
            sizes.append(len(batch))
            plan += [[(epoch, int(index)) for index in batch[part]] for part in self._share.micro_batches(len(batch))]
        read = self._read(True, plan)
        for size in sizes:
            yield [self._batch(*next(read), size) for _ in range(self._share.accumulation)]

    def eval(self) -> Iterable[Batch]:
        """This rank's share of the validation images, each once."""
        mine, most = self._share.of(self.eval_size), self._settings.eval_batch_size
        starts = range(mine.start, mine.stop, most)
        plan = [[(0, index) for index in range(start, min(start + most, mine.stop))] for start in starts]
        for pixels, labels in self._read(False, plan):
            yield self._batch(pixels, labels, self.eval_size)

    def synthetic_train(self) -> Sequence[Batch]:
        """Random pixels in the shapes of the first step."""
        samples = min(self._global_batch_size, self.train_size)
        return [self._random(part.stop - part.start, samples) for part in self._share.micro_batches(samples)]

    def synthetic_eval(self) -> Batch:
        """Random pixels in the shape of the first evaluation batch."""
        size = min(self._settings.eval_batch_size, max(1, self.eval_size // self._share.ranks))
        return self._random(size, size)

    def facts(self) -> dict[str, Any]:
        """Nothing that MLPerf asks for beyond the sizes; the loader is on record."""
        return {"timetrial_loader": "torch", "timetrial_image_size": self._settings.image_size}

    def _batch(self, pixels: Tensor, labels: Tensor, global_samples: int) -> Batch:
        on_device = pixels.to(self._device, non_blocking=True).float().sub_(self._means)
        content = (on_device.contiguous(memory_format=torch.channels_last), labels.to(self._device, non_blocking=True))
        return Batch(content, len(labels), global_samples, global_samples)

    def _random(self, size: int, global_samples: int) -> Batch:
        edge = self._settings.image_size
        pixels = torch.randint(256, (size, 3, edge, edge), dtype=torch.uint8, device=self._device)
        return self._batch(pixels, torch.randint(self.num_classes, (size,), device=self._device), global_samples)

    def _read(self, train: bool, plan: Sequence[Sequence[tuple[int, int]]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of `plan` in its order; raises what a worker found wrong with a file."""
        if train not in self._loaders:
            self._loaders[train] = self._loader(train)
        loader = self._loaders[train]
        assert isinstance(loader.batch_sampler, _Plan)
        loader.batch_sampler.batches = plan
        for found in loader:
            if isinstance(found, str):
                raise DataError(found)
            yield found

    def _loader(self, train: bool) -> DataLoader[Any]:
        edge, seed = self._settings.image_size, self._seeds.of("order", 0)
        pictures = _Pictures(
            self._train if train else self._val, edge, seed if train else None, self._settings.least_area
        )
        workers = self._settings.workers
        if workers is None:
            usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            workers = max(1, min(_MOST_WORKERS, usable // self._share.ranks))
        return DataLoader(
            pictures,
            batch_sampler=_Plan(),
            num_workers=workers,
            collate_fn=_collate,
            worker_init_fn=_leave_signals_to_the_rank,
            persistent_workers=workers > 0,
            pin_memory=self._device.type != "cpu",
        )


class _Plan:
    """The batches of the next pass, each a list of (epoch, index)."""

    batches: Sequence[Sequence[tuple[int, int]]] = ()

    def __iter__(self) -> Iterator[Sequence[tuple[int, int]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Pictures(Dataset[Any]):
    """Decoded, cropped images: uint8 [3, size, size] and class, or a sentence on what is wrong with the file."""

    def __init__(self, files: ImageSet, size: int, seed: int | None, least_area: float) -> None:
        self._files, self._size, self._seed, self._least_area = files, size, seed, least_area

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int] | str:
        epoch, index = key
        try:
            image = imagenet.read_image(self._files.path(index))
        except DataError as error:
            return str(error)
        if self._seed is None:
            return centre(image, self._size), int(self._files.labels[index])
        generator = np.random.default_rng((self._seed, epoch, index))
        return crop(image, self._size, self._least_area, generator), int(self._files.labels[index])


def crop(image: Tensor, size: int, least_area: float, generator: np.random.Generator) -> Tensor:
    """MLPerf's training crop: area and aspect at random, resized (bilinear, antialiased), mirrored half of the time."""
    height, width = image.shape[-2:]
    top, left, tall, wide = 0, 0, height, width
    for _ in range(_TRIES):
        area, aspect = generator.uniform(least_area, 1) * height * width, generator.uniform(*_ASPECT)
        down, across = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < down <= height and 0 < across <= width:
            top, left = int(generator.integers(height - down + 1)), int(generator.integers(width - across + 1))
            tall, wide = down, across
            break
    small = vision.resized_crop(image, top, left, tall, wide, [size, size], antialias=True)
    return vision.horizontal_flip(small) if generator.random() < 0.5 else small


def centre(image: Tensor, size: int) -> Tensor:
    """MLPerf's evaluation crop: the short side to 8/7 of `size`, then the middle."""
    return vision.center_crop(vision.resize(image, [round(size * 8 / 7)], antialias=True), [size, size])


def _collate(pictures: Sequence[tuple[Tensor, int] | str]) -> tuple[Tensor, Tensor] | str:
    wrong = next((picture for picture in pictures if isinstance(picture, str)), None)
    if wrong is not None:
        return wrong
    return torch.stack([picture[0] for picture in pictures]), torch.tensor([picture[1] for picture in pictures])


def _leave_signals_to_the_rank(worker: int) -> None:
    """The rank alone decides what a stop signal means; a worker ends when the rank tells it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
