"""Worker processes that read encoded images from disk, check them, and choose their crops."""

import atexit
import ctypes
import gc
import os
import signal
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from timetrial.datasets import jpeg
from timetrial.datasets.imagenet import ImageSet
from timetrial.datasets.jpeg import Jpeg
from timetrial.runner.errors import DataError
from timetrial.workloads.resnet50 import crops

MOST_WORKERS = 16  # a rank: beyond that, processes are in each other's way

Plan = Sequence[Sequence[int]]  # image numbers of every batch


@dataclass
class Encoded:
    """A batch as its JPEGs, one after the other in `data` (uint8), with what to cut out of them.

    `lengths` int64 [N] in bytes, `sizes` int32 [N, 2] (height, width), `boxes` int32 [N, 4] (top, left, height, width),
    `mirrored` bool [N], `labels` int64 [N]; `numbers` are the images' in their set.
    """

    data: Tensor
    lengths: Tensor
    sizes: Tensor
    boxes: Tensor
    mirrored: Tensor
    labels: Tensor
    numbers: Sequence[int]

    def pin_memory(self) -> "Encoded":
        """The same with the JPEGs in pinned memory; the DataLoader's thread for that calls it."""
        return replace(self, data=self.data.pin_memory())

    def jpegs(self) -> list[Tensor]:
        """One uint8 tensor an image, without copying."""
        return list(self.data.split(self.lengths.tolist()))


@dataclass
class Decoded:
    """A batch as pixels uint8 [N, size, size, 3] RGB and labels int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def pin_memory(self) -> "Decoded":
        """The same in pinned memory."""
        return Decoded(self.pixels.pin_memory(), self.labels.pin_memory())


class Reader:
    """Reads batches of one set in the order of a plan; what a worker makes depends on seed, epoch and image alone."""

    def __init__(
        self,
        images: ImageSet,
        *,
        size: int,
        least_area: float | None,
        seed: int,
        workers: int,
        decode: bool,
        pin: bool,
    ) -> None:
        """`least_area` None cuts the centre out; `decode` lets the workers decode and resize to `size` too.

        `pin` leaves batches in pinned memory. The workers start here, in the caller's thread.
        """
        self._batches = _Plan()
        self._images = images
        self._loader: DataLoader[Any] = DataLoader(
            _Pictures(images, size, least_area, seed, decode),
            batch_sampler=self._batches,  # type: ignore[arg-type] # a batch's key is more than a list of numbers
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_leave_signals_to_the_rank,
            persistent_workers=workers > 0,
            pin_memory=pin,
        )
        # Holds the loader until the reader goes: in a cycle of garbage its queues would go before its workers are told.
        end = weakref.finalize(self, _end_workers, self._loader)
        end.atexit = False  # `finalize` comes too late there: multiprocessing sends signals that workers do not heed
        atexit.register(end)
        if workers:
            # Forks now, while this process has few threads, and off the clock. What a child found would hang it if
            # it were collected there: frameworks' objects wait for threads that only the parent has.
            gc.freeze()
            iter(self._loader)
            gc.unfreeze()

    def read(self, epoch: int, plan: Plan) -> Iterator[Any]:
        """The batches of `plan`: `Decoded` or `Encoded`; raises `DataError` on a file that is wrong."""
        self._batches.epoch, self._batches.plan = epoch, plan
        return map(self._unless_wrong, iter(self._loader))

    def _unless_wrong(self, found: Encoded | Decoded | str) -> Encoded | Decoded:
        if isinstance(found, str):
            raise DataError(found)
        return found

    def blame(self, batch: Encoded, error: Exception) -> DataError:
        """The image of `batch` that a decoder rejected with `error`, found by decoding one at a time."""
        for number, data in zip(batch.numbers, batch.jpegs(), strict=True):
            try:
                jpeg.decode(data.numpy().tobytes(), self._images.name(number))
            except DataError as wrong:
                return wrong
        names = f"{self._images.name(batch.numbers[0])} and the {len(batch.numbers) - 1} after it in the batch"
        reason = str(error).partition("\n")[0]
        return DataError(f"The decoder rejected one of {names} ({reason}): try another loader, as in data=torch.")


def resize(pixels: Tensor, size: int) -> Tensor:
    """uint8 [height, width, 3] to [size, size, 3]: bilinear between pixel centres, no antialiasing (mlperf.md 12.1)."""
    image = pixels.permute(2, 0, 1)[None]
    if image.shape[-2:] != (size, size):
        image = F.interpolate(image, (size, size), mode="bilinear", align_corners=False)
    return image[0].permute(1, 2, 0)


def workers_of(asked: int | None, ranks: int) -> int:
    """`asked`, or as many workers for a rank as it has cores."""
    if asked is not None:
        return asked
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, usable // ranks))


class _Plan:
    """The batches of the next pass, each a list of (epoch, image number)."""

    epoch: int = 0
    plan: Plan = ()

    def __iter__(self) -> Iterator[tuple[int, Sequence[int]]]:
        return iter([(self.epoch, batch) for batch in self.plan])

    def __len__(self) -> int:
        return len(self.plan)


class _Pictures(Dataset[Any]):
    def __init__(self, images: ImageSet, size: int, least_area: float | None, seed: int, decode: bool) -> None:
        self._images, self._size, self._least_area = images, size, least_area
        self._seed, self._decode = seed, decode

    def __getitems__(self, key: tuple[int, Sequence[int]]) -> Encoded | Decoded | str:
        """A batch, or the sentence of the error (exceptions would lose theirs on the way to the rank)."""
        try:
            return self._batch(*key)
        except DataError as error:
            return str(error)

    def _batch(self, epoch: int, numbers: Sequence[int]) -> Encoded | Decoded:
        found = [jpeg.plain(self._images.read(number), self._images.name(number)) for number in numbers]
        views = [self._view(image, epoch, number) for image, number in zip(found, numbers, strict=True)]
        labels = torch.from_numpy(self._images.label[np.asarray(numbers, dtype=np.int64)])
        if not self._decode:
            return Encoded(
                torch.frombuffer(bytearray().join([image.data for image in found]), dtype=torch.uint8),
                torch.tensor([len(image.data) for image in found]),
                torch.tensor([(image.height, image.width) for image in found], dtype=torch.int32),
                torch.tensor([box for box, _ in views], dtype=torch.int32),
                torch.tensor([mirrored for _, mirrored in views]),
                labels,
                numbers,
            )
        out = torch.empty(len(found), self._size, self._size, 3, dtype=torch.uint8)
        for place, image, (box, mirrored), number in zip(out, found, views, numbers, strict=True):
            small = self._cut(image, box, number)
            place.copy_(small.flip(1) if mirrored else small)
        return Decoded(out, labels)

    def _view(self, image: Jpeg, epoch: int, number: int) -> tuple[crops.Box, bool]:
        if self._least_area is None:
            return crops.centre_box(image.height, image.width), False
        generator = np.random.default_rng((self._seed, epoch, number))
        box = crops.random_box(image.height, image.width, self._least_area, generator)
        return box, bool(generator.random() < 0.5)

    def _cut(self, image: Jpeg, box: crops.Box, number: int) -> Tensor:
        top, left, tall, wide = box
        pixels = jpeg.decode(image.data, self._images.name(number))[top : top + tall, left : left + wide]
        return resize(torch.from_numpy(pixels.copy()), self._size)


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_signals_to_the_rank(worker: int) -> None:
    """The rank alone decides what a stop signal means; a worker ends when the rank tells it, or is gone."""
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # nor is it left over from a rank that was killed outright
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _end_workers(loader: DataLoader[Any]) -> None:
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined] # only one of workers is kept
