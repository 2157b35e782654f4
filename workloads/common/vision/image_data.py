"""The data of an image workload on one rank: which images form a batch, and how batches reach the model."""

import atexit
import itertools
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ....runner.core.errors import DataError
from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding, Data
from .batches import ImageBatch
from .decode_workers import Key, worker_count
from .gpu_decode import can_decode
from .pipeline import GpuDecoder, ImageDataset, ImageDecoder, ImageLoader, ImageSource, Loader, Transform
from .read_ahead import ReadAhead

# Training images of an epoch for each process that only reads: on one core it reads 2,900 images of 640x480 a second.
_IMAGES_PER_READER = 32


class BatchSource(Protocol):
    """Where the batches of an `ImageData` come from. It is built before the clock starts."""

    def open(self, data: "ImageData") -> None:
        """Read or prepare to read; the sets of `data` are open."""
        ...

    def train_batches(self, data: "ImageData", epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield the micro-batches of each step of an epoch."""
        ...

    def eval_batches(self, data: "ImageData") -> Iterable[Batch]:
        """Yield the evaluation batches of this rank."""
        ...


class ImageData(Data):
    """Plans epochs and evaluations, and makes the images of a `BatchSource` batches on the device.

    A subclass takes its sizes from the manifest in `_read_sizes`, opens its images in `_open_sets`, names their source
    and transform, and sets `loader`, `num_classes` and `image_size` (pixels). `settings` must have `eval_batch_size`
    and, for loaders, `workers`. `images_per_statistic` is what a batch norm sees.

    Every step has the same number of images. The last one of an epoch is padded with the first images of the epoch's
    order, as PyTorch's `DistributedSampler` pads it (docs/mlperf_rules.md, "Data").
    """

    loader: ClassVar[str]
    eval_groups: ClassVar[int] = 1  # evaluation images of different groups share no batch
    image_size: int
    num_classes: int

    def __init__(
        self, settings: Any, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.settings, self.sharding, self.device, self.seeds = settings, sharding, device, seeds
        self.global_batch_size = global_batch_size
        self.train_size, self.eval_size = self._read_sizes()
        self.step_size = min(global_batch_size, self.train_size)
        self.steps_per_epoch = math.ceil(self.train_size / self.step_size)
        parts = sharding.ranks * sharding.accumulation
        if self.step_size < parts:
            raise DataError(
                f"{self.train_size} training images are too few for {parts} micro-batches: train on fewer GPUs, or on "
                "more images."
            )
        self.images_per_statistic = math.ceil(global_batch_size / parts)
        self._batch_source: BatchSource | None = None

    def start_processes(self) -> None:
        """Start the processes that read images, and maybe decode them."""
        Image.preinit()  # they would each import the formats of images, on the clock
        self._batch_source = self._build_batch_source()

    def open(self) -> None:
        """Open the images, and let batches be made of them."""
        if self._batch_source is None:
            self.start_processes()
        self._open_sets()
        self._started_source().open(self)

    def _read_sizes(self) -> tuple[int, int]:
        """Return the sizes of the training and the validation set from the manifest."""
        raise NotImplementedError

    def _open_sets(self) -> None:
        """Find the images of both sets without reading them; default: nothing."""

    def build_source(self, train: bool) -> ImageSource:
        """Return the images of the training or the validation set."""
        raise NotImplementedError

    def build_transform(self, train: bool) -> Transform:
        """Return the transform of training or of evaluation."""
        raise NotImplementedError

    def build_decoder(self, transform: Transform, train: bool) -> ImageDecoder | None:
        """Return what decodes and transforms in place of the worker processes, or None."""
        return GpuDecoder(transform, self.device) if can_decode(self.device) else None

    def build_warm_up_source(self) -> ImageSource | None:
        """Return an image on which the GPU's decoders can be warmed up; None, the default, if there are none."""
        return None

    def build_dataset(self, train: bool) -> ImageDataset:
        """Return the source with its transform."""
        return ImageDataset(self.build_source(train), self.build_transform(train), self.seeds.derive("data_order", 0))

    def build_loader(self, train: bool) -> Loader:
        """Return the loader of training or of evaluation."""
        decoder = self.build_decoder(self.build_transform(train), train)
        workers = self._workers()
        # A process takes 10 to 60 ms to start, the longer the more memory this one has.
        if not train:
            workers = min(workers, len(self.eval_spans()) + self.eval_groups - 1)
        elif decoder is not None and self.settings.workers is None:  # they read, and decode nothing
            workers = min(workers, math.ceil(self.train_size / self.sharding.ranks / _IMAGES_PER_READER))
        return ImageLoader(workers=workers, device=self.device, decoder=decoder)

    def train_plan(self, epoch: int) -> list[list[int]]:
        """Return the image indices of each micro-batch of this rank, shuffled."""
        generator = np.random.default_rng(self.seeds.derive("data_order", epoch))
        order = self.pad(generator.permutation(self.train_size))
        return [order[part].tolist() for step in self.steps() for part in step]

    def pad(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the epoch's `order` of all training images, padded from its start to full steps."""
        return np.resize(order, self.steps_per_epoch * self.step_size)

    def eval_plan(self) -> list[list[int]]:
        """Return the image indices of this rank's evaluation batches, each image once."""
        return [list(range(span.start, span.stop)) for span in self.eval_spans()]

    def steps(self) -> Iterator[list[slice]]:
        """Yield this rank's micro-batches of each step as slices of the epoch's padded order."""
        parts = self.sharding.micro_batches(self.step_size)
        for start in range(0, self.steps_per_epoch * self.step_size, self.step_size):
            yield [slice(start + part.start, start + part.stop) for part in parts]

    def eval_spans(self) -> list[slice]:
        """Return this rank's evaluation batches as slices of the validation set, each image once."""
        return self.sharding.eval_spans(self.eval_size, self.settings.eval_batch_size)

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield the micro-batches of each step; for any number of ranks and workers, an epoch is the same."""
        return self._started_source().train_batches(self, epoch)

    def eval_batches(self) -> Iterable[Batch]:
        """Yield this rank's shard of the validation images, each once."""
        return self._started_source().eval_batches(self)

    def make_batch(self, images: ImageBatch, global_samples: int) -> Batch:
        """Return a batch on the device: pixels uint8 [N, 3, H, W], channels-last in memory, and the targets."""
        pixels, *targets = images.to(self.device).tensors()
        return Batch((pixels.permute(0, 3, 1, 2), *targets), len(pixels), global_samples, global_samples)

    def warm_up_steps(self) -> Iterator[Sequence[Batch]]:
        """Yield `random_steps()` and start the decoders beside them, so that nothing is compiled on the clock."""
        with ThreadPoolExecutor(1) as thread:
            decoders = thread.submit(self._warm_up_decoders)
            if torch.backends.cudnn.benchmark:  # the first step times algorithms, which the decoders would disturb
                decoders.result()
            yield from self.random_steps()
            decoders.result()

    def _warm_up_decoders(self) -> None:
        if (source := self.build_warm_up_source()) is not None:
            for train, size in ((True, self._micro_batch_sizes()[0]), (False, self._eval_step_size())):
                transform = self.build_transform(train)
                if isinstance(decoder := self.build_decoder(transform, train), GpuDecoder):
                    decoder.warm_up(ImageDataset(source, transform, 0).encoded_batch(0, [0] * size))

    def random_steps(self) -> Iterator[Sequence[Batch]]:
        """Yield a step of random images in each shape of training."""
        yield [self.make_batch(self._random_train_images(size), self.step_size) for size in self._micro_batch_sizes()]

    def warm_up_eval_batches(self) -> Iterator[Batch]:
        """Yield random images in the shape of the first evaluation batch, and of the last one if that is smaller."""
        full = self._eval_step_size()
        partial = {span.stop - span.start for span in self.eval_spans()} - {full}
        for size in (full, *sorted(partial)):
            batch = self.make_batch(self._random_eval_images(size), self.eval_size)
            yield replace(batch, is_partial=size != full)

    def _micro_batch_sizes(self) -> list[int]:
        """Return the images of this rank's micro-batches of a step."""
        return [part.stop - part.start for part in self.sharding.micro_batches(self.step_size)]

    def _eval_step_size(self) -> int:
        """Return the images of the first evaluation batch of a rank."""
        return min(self.settings.eval_batch_size, max(1, self.eval_size // self.sharding.ranks))

    def _random_train_images(self, size: int) -> ImageBatch:
        """Return `size` random images and labels."""
        pixels = torch.randint(256, (size, self.image_size, self.image_size, 3), dtype=torch.uint8, device=self.device)
        return ImageBatch(pixels, (torch.randint(self.num_classes, (size,), device=self.device),))

    def _random_eval_images(self, size: int) -> ImageBatch:
        return self._random_train_images(size)

    def _build_batch_source(self) -> BatchSource:
        return LoadedBatches(self.build_loader(True), self.build_loader(False))

    def _started_source(self) -> BatchSource:
        assert self._batch_source is not None
        return self._batch_source

    def _workers(self) -> int:
        """Return the number of reading processes of a loader."""
        return worker_count(self.settings.workers, self.sharding.ranks)


class LoadedBatches:
    """Reads the planned images by two loaders, each of which reads ahead while the other is used."""

    def __init__(self, train_loader: Loader, eval_loader: Loader) -> None:
        self._loaders = {True: train_loader, False: eval_loader}
        self._train, self._eval = ReadAhead(train_loader, _train_plans), ReadAhead(eval_loader, _eval_plans)
        self._evaluation = 1  # the next one
        # TensorFlow can hang if Python ends while it reads ahead.
        atexit.register(_stop_reading_ahead, weakref.ref(self))

    def open(self, data: ImageData) -> None:
        """Let the loaders read the two sets."""
        for train, loader in self._loaders.items():
            loader.open(data.build_dataset(train))

    def close(self) -> None:
        """Stop reading ahead."""
        self._train.close()
        self._eval.close()

    def train_batches(self, data: ImageData, epoch: int) -> Iterator[Sequence[Batch]]:
        """Yield the images of the epoch's plan."""
        accumulation = data.sharding.accumulation
        images = self._train.take(data, epoch, data.steps_per_epoch * accumulation)
        while parts := list(itertools.islice(images, accumulation)):
            yield [data.make_batch(part, data.step_size) for part in parts]
            if self._evaluation == 1:  # the others are read on; not before the first step, which it would delay
                self._eval.start(data, 1)

    def eval_batches(self, data: ImageData) -> Iterator[Batch]:
        """Yield every image of the rank's plan once."""
        number, self._evaluation = self._evaluation, self._evaluation + 1
        for images in self._eval.take(data, number, len(data.eval_plan())):
            yield data.make_batch(images, data.eval_size)


def _stop_reading_ahead(owner: "weakref.ref[LoadedBatches]") -> None:
    if (batches := owner()) is not None:
        batches.close()


def _train_plans(data: ImageData, epoch: int) -> Iterator[Key]:
    """Yield the keys of the batches of this and all later epochs."""
    for number in itertools.count(epoch):
        yield from ((number, indices) for indices in data.train_plan(number))


def _eval_plans(data: ImageData, _evaluation: int) -> Iterator[Key]:
    """Yield the keys of the batches of endless evaluations."""
    while plan := data.eval_plan():  # empty on a rank without images
        yield from ((0, indices) for indices in plan)


class SyntheticBatches:
    """data=synthetic: repeats one step and one evaluation batch of random images; nothing is read or learned."""

    def __init__(self) -> None:
        self._step: Sequence[Batch] | None = None
        self._eval_batch: Batch | None = None

    def open(self, data: ImageData) -> None:
        """Do nothing."""

    def train_batches(self, data: ImageData, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield as many steps as an epoch has."""
        if self._step is None:  # made once: random images take longer than a step
            self._step = next(data.random_steps())
        return itertools.repeat(self._step, data.steps_per_epoch)

    def eval_batches(self, data: ImageData) -> Iterable[Batch]:
        """Yield as many batches as the evaluation has."""
        return itertools.repeat(self.eval_batch(data), len(data.eval_spans()))

    def eval_batch(self, data: ImageData) -> Batch:
        """Return the batch that is repeated."""
        if self._eval_batch is None:
            self._eval_batch = next(data.warm_up_eval_batches())
        return self._eval_batch
