"""Worker processes that read encoded images from disk, check them, and choose what is seen of them."""

import atexit
import ctypes
import gc
import os
import signal
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ....datasets.formats import jpeg
from ....datasets.formats.jpeg import Jpeg
from ....runner.core.errors import DataError

MAX_WORKERS = 16  # a rank: beyond that, processes are in each other's way

Plan = Sequence[Sequence[int]]  # image numbers of every batch
Box = tuple[int, int, int, int]  # top, left, height, width in pixels


class View(NamedTuple):
    """What is seen of an image: a box of it, as in a mirror or not, and what is to be found there.

    How the `targets` of a batch's views become tensors, `ImageSource.collate` says.
    """

    box: Box
    flipped: bool
    targets: tuple[NDArray[Any], ...]


class ImageSource(Protocol):
    """EncodedBatch images by number, and how a task sees them."""

    def name(self, number: int) -> str:
        """What to call image `number` in a message."""
        ...

    def read(self, number: int) -> bytes:
        """The encoded image; raises `DataError` where it is gone."""
        ...

    def view(self, number: int, height: int, width: int, epoch: int) -> View:
        """What is seen of image `number`, of `height` by `width` pixels, in an epoch: equal for equal seeds."""
        ...

    def render(self, pixels: Tensor, view: View) -> Tensor:
        """The view as the network sees it, of the whole image's pixels uint8 [height, width, 3].

        It is uint8 [H, W, 3]; H and W are equal for all views of a batch.
        """
        ...

    def collate(self, targets: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Tensor, ...]:
        """The targets of a batch, of those of its views: plain tensors, which are pinned and sent as they are."""
        ...


def stack_targets(targets: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Tensor, ...]:
    """Targets of equal shapes, one above the other: [N, ...] each."""
    return tuple(torch.from_numpy(np.stack(part)) for part in zip(*targets, strict=True))


@dataclass
class EncodedBatch:
    """A batch as its JPEGs, one after the other in `data` (uint8), with what to cut out of them.

    `lengths` int64 [N] in bytes, `sizes` int32 [N, 2] (height, width), `boxes` int32 [N, 4] (top, left, height, width),
    `flipped` bool [N], `targets` as the pictures collate them; `numbers` are the images' in their set.
    """

    data: Tensor
    lengths: Tensor
    sizes: Tensor
    boxes: Tensor
    flipped: Tensor
    targets: tuple[Tensor, ...]
    numbers: Sequence[int]

    def pin_memory(self) -> "EncodedBatch":
        """The same with the JPEGs in pinned memory; the DataLoader's thread for that calls it."""
        return replace(self, data=self.data.pin_memory())

    def jpegs(self) -> list[Tensor]:
        """One uint8 tensor an image, without copying."""
        return list(self.data.split(self.lengths.tolist()))


@dataclass
class DecodedBatch:
    """A batch as pixels uint8 [N, H, W, 3] RGB, and its targets as the pictures collate them."""

    pixels: Tensor
    targets: tuple[Tensor, ...]

    def pin_memory(self) -> "DecodedBatch":
        """The same in pinned memory."""
        return DecodedBatch(self.pixels.pin_memory(), tuple(target.pin_memory() for target in self.targets))


class WorkerReader:
    """Reads batches of one set in the order of a plan; what a worker makes depends on seed, epoch and image alone."""

    def __init__(self, pictures: ImageSource, *, workers: int, decode: bool, pin: bool) -> None:
        """`decode` lets the workers decode and render too; `pin` leaves batches in pinned memory.

        The workers start here, in the caller's thread.
        """
        self._batches = _Plan()
        self._pictures = pictures
        self._loader: DataLoader[Any] = DataLoader(
            _Batches(pictures, decode),
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
        """The batches of `plan`: `DecodedBatch` or `EncodedBatch`; raises `DataError` on a file that is wrong."""
        self._batches.epoch, self._batches.plan = epoch, plan
        return map(self._unless_wrong, iter(self._loader))

    def _unless_wrong(self, found: EncodedBatch | DecodedBatch | str) -> EncodedBatch | DecodedBatch:
        if isinstance(found, str):
            raise DataError(found)
        return found

    def locate_bad_image(self, batch: EncodedBatch, error: Exception) -> DataError:
        """The image of `batch` that a decoder rejected with `error`, found by decoding one at a time."""
        for number, data in zip(batch.numbers, batch.jpegs(), strict=True):
            try:
                jpeg.decode(data.numpy().tobytes(), self._pictures.name(number))
            except DataError as wrong:
                return wrong
        names = f"{self._pictures.name(batch.numbers[0])} and the {len(batch.numbers) - 1} after it in the batch"
        reason = str(error).partition("\n")[0]
        return DataError(f"The decoder rejected one of {names} ({reason}): try another loader, as in data=torch.")


def worker_count(asked: int | None, ranks: int) -> int:
    """`asked`, or as many workers for a rank as it has cores."""
    if asked is not None:
        return asked
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, usable // ranks))


class _Plan:
    """The batches of the next pass, each a list of (epoch, image number)."""

    epoch: int = 0
    plan: Plan = ()

    def __iter__(self) -> Iterator[tuple[int, Sequence[int]]]:
        return iter([(self.epoch, batch) for batch in self.plan])

    def __len__(self) -> int:
        return len(self.plan)


class _Batches(Dataset[Any]):
    def __init__(self, pictures: ImageSource, decode: bool) -> None:
        self._pictures, self._decode = pictures, decode

    def __getitems__(self, key: tuple[int, Sequence[int]]) -> EncodedBatch | DecodedBatch | str:
        """A batch, or the sentence of the error (exceptions would lose theirs on the way to the rank)."""
        try:
            return self._batch(*key)
        except DataError as error:
            return str(error)

    def _batch(self, epoch: int, numbers: Sequence[int]) -> EncodedBatch | DecodedBatch:
        found = [jpeg.plain(self._pictures.read(number), self._pictures.name(number)) for number in numbers]
        views = [
            self._pictures.view(number, image.height, image.width, epoch)
            for image, number in zip(found, numbers, strict=True)
        ]
        targets = self._pictures.collate([view.targets for view in views])
        if self._decode:
            seen = [self._seen(*each) for each in zip(found, views, numbers, strict=True)]
            return DecodedBatch(torch.stack(seen), targets)
        return EncodedBatch(
            torch.frombuffer(bytearray().join([image.data for image in found]), dtype=torch.uint8),
            torch.tensor([len(image.data) for image in found]),
            torch.tensor([(image.height, image.width) for image in found], dtype=torch.int32),
            torch.tensor([view.box for view in views], dtype=torch.int32),
            torch.tensor([view.flipped for view in views]),
            targets,
            numbers,
        )

    def _seen(self, image: Jpeg, view: View, number: int) -> Tensor:
        pixels = jpeg.decode(image.data, self._pictures.name(number))
        return self._pictures.render(torch.from_numpy(pixels.copy()), view)


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
