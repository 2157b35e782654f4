"""What an NVIDIA card does for a loader: decoding, cropping and resizing, in a thread and on a stream of their own."""

import functools
import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from . import nvjpeg
from .decode_workers import DecodedBatch, EncodedBatch

_AHEAD = 2  # batches made before they are asked for
# Decoding threads. nvJPEG waits for the card after every few images, behind kernels of the training step: one thread
# leaves the engines idle, and each further one takes more of the step's time (workloads/resnet50/PERFORMANCE.md).
_DECODERS = 2
_FEWEST = 16  # images worth a thread


def is_supported(device: torch.device) -> bool:
    """Whether `device` is a card for which this file is written: one that decodes JPEGs for PyTorch."""
    return device.type == "cuda" and torch.version.hip is None


# The views of a batch, uint8 [N, H, W, 3], of images whose planes lie at addresses int64 [N] on the card.
Look = Callable[[Tensor, EncodedBatch], Tensor]


def decode(batch: EncodedBatch, render: Look, device: torch.device) -> DecodedBatch:
    """The batch's views, made on the card; raises RuntimeError where an image is wrong."""
    images, addresses = _decoders(device).decode(batch)
    pixels = render(addresses, batch)
    targets = tuple(target.to(device) for target in batch.targets)
    torch.cuda.current_stream(device).synchronize()  # the JPEGs' and the images' memory is used again from here on
    del images
    return DecodedBatch(pixels, targets)


def upload(batch: DecodedBatch, device: torch.device) -> DecodedBatch:
    """The batch on the card, or on its way there from pinned memory."""
    targets = tuple(target.to(device, non_blocking=True) for target in batch.targets)
    return DecodedBatch(batch.pixels.to(device, non_blocking=True), targets)


class _Decoders:
    """The card's JPEG engines behind several threads, each with a stream; torchvision's decoder where they fail."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(_DECODERS, "decode", torch.cuda.set_device, (device,))
        self._streams = [torch.cuda.Stream(device, priority=-1) for _ in range(_DECODERS)]
        try:
            self._engines = [nvjpeg.Engines(device) for _ in range(_DECODERS)]
        except (OSError, AttributeError, RuntimeError):  # no such library, or a card without engines: before Ampere
            self._engines = []

    def decode(self, batch: EncodedBatch) -> tuple[list[Tensor], Tensor]:
        """Each image's planes uint8 [3, height, width] on the card: tensors that hold them, and addresses int64 [N]."""
        images = len(batch.lengths)
        addresses, held = torch.full((images,), -1), []
        if self._engines:
            parts = min(_DECODERS, -(-images // _FEWEST))
            edges = [images * part // parts for part in range(parts + 1)]
            ends = [0, *batch.lengths.cumsum(0).tolist()]
            made = self._threads.map(
                lambda part: self._part(
                    part,
                    batch.data[ends[edges[part]] : ends[edges[part + 1]]],
                    batch.lengths[edges[part] : edges[part + 1]],
                    batch.sizes[edges[part] : edges[part + 1]],
                ),
                range(parts),
            )
            held, found = map(list, zip(*made, strict=True))
            addresses = torch.cat(found)
        if left := (addresses < 0).nonzero().flatten().tolist():
            jpegs = batch.jpegs()
            rest = self._by_torchvision([jpegs[index] for index in left])
            addresses[left] = torch.tensor([image.data_ptr() for image in rest])
            held += rest
        return held, addresses

    def _part(self, part: int, data: Tensor, lengths: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        stream = self._streams[part]
        with torch.cuda.stream(stream):
            planes, places = self._engines[part].decode(data, lengths, sizes)
            stream.synchronize()
        return planes, torch.where(places < 0, -1, places + planes.data_ptr())

    def _by_torchvision(self, jpegs: list[Tensor]) -> list[Tensor]:
        """Progressive images, and all on a card without engines."""
        from torchvision.io import ImageReadMode, decode_jpeg

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 announces a move, not yet made
            return list(decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=self._device))


_decoders = functools.cache(_Decoders)


def prefetch(batches: Iterator[DecodedBatch], device: torch.device) -> Iterator[DecodedBatch]:
    """Makes `batches` in a thread, on a stream of their own, while the card trains on those before."""
    stream = torch.cuda.Stream(device, priority=-1)  # before the step's kernels: they are many, these are small
    made: queue.Queue[Any] = queue.Queue(_AHEAD)
    over = threading.Event()

    def put(thing: Any) -> None:
        while not over.is_set():
            try:
                return made.put(thing, timeout=0.2)
            except queue.Full:
                continue

    def make() -> None:
        try:
            torch.cuda.set_device(device)
            with torch.cuda.stream(stream):
                for batch in batches:
                    put((batch, stream.record_event()))
                    if over.is_set():
                        return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while (found := made.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            batch, ready = found
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            for tensor in (batch.pixels, *batch.targets):
                tensor.record_stream(current)  # its memory is not given away while the step still reads it
            yield batch
    finally:
        over.set()
        thread.join()
