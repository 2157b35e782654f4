"""JPEG decoding on NVIDIA GPUs, and prefetching of batches in a separate thread and stream."""

import functools
import queue
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ....runner.core import execution_paths
from ....runner.hardware.devices import is_nvidia_gpu
from ..nn.triton_support import has_triton
from . import nvjpeg

_PREFETCHED = 2  # batches made before they are asked for
# Decoding threads. nvJPEG waits for the GPU after every few images, behind kernels of the training step: one thread
# leaves the engines idle, and each further one takes more of the step's time (workloads/resnet50/PERFORMANCE.md).
_THREADS = 2
_MIN_IMAGES_PER_THREAD = 16


class _Batch(Protocol):
    def tensors(self) -> Iterable[Tensor]: ...


_BatchT = TypeVar("_BatchT", bound=_Batch)


@dataclass
class GpuImages:
    """Decoded images on a GPU: planes uint8 [3, height, width] that begin at `addresses` int64 [N].

    `addresses` and `sizes` int32 [N, 2] (height, width) lie on the CPU. `buffers` own the memory.
    """

    addresses: Tensor
    sizes: Tensor
    device: torch.device
    buffers: list[Tensor]


def can_decode(device: torch.device) -> bool:
    """Return whether a device decodes JPEGs here: a GPU of NVIDIA with Triton, whose kernels crop and resize."""
    return is_nvidia_gpu(device) and has_triton()


def decode_jpegs(data: Tensor, lengths: Tensor, sizes: Tensor, device: torch.device) -> GpuImages:
    """Decode N JPEGs that are concatenated in `data` uint8 (CPU) on the GPU.

    `lengths` int64 [N] are in bytes, `sizes` int32 [N, 2] are (height, width). `data` must stay until the current
    stream is synchronized. Raises RuntimeError if an image cannot be decoded.
    """
    return _decoders(device).decode(data, lengths, sizes)


class _Decoders:
    """The JPEG engines of a GPU behind several threads with a stream each, and torchvision's decoder as a fallback."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(_THREADS, "decode", torch.cuda.set_device, (device,))
        self._streams = [torch.cuda.Stream(device, priority=-1) for _ in range(_THREADS)]
        try:
            self._engines = [nvjpeg.Engines(device) for _ in range(_THREADS)]
        except (OSError, AttributeError, RuntimeError):  # no such library, or a GPU without engines: before Ampere
            self._engines = []
        # An evaluation decodes while the first batches of the next epoch are made.
        self._locks = [threading.Lock() for _ in self._engines]

    def decode(self, data: Tensor, lengths: Tensor, sizes: Tensor) -> GpuImages:
        """Decode as `decode_jpegs` says."""
        addresses, buffers = torch.full((len(lengths),), -1), list[Tensor]()
        if self._engines:
            execution_paths.take("decoder", "JPEG engines")
            buffers, addresses = self._decode_by_engines(data, lengths, sizes)
        if remaining := (addresses < 0).nonzero().flatten().tolist():
            execution_paths.fall_back("decoder", "torchvision on the GPU")
            jpegs = data.split(lengths.tolist())
            images = self._decode_by_torchvision([jpegs[index] for index in remaining])
            addresses[remaining] = torch.tensor([image.data_ptr() for image in images])
            buffers += images
        return GpuImages(addresses, sizes, self._device, buffers)

    def _decode_by_engines(self, data: Tensor, lengths: Tensor, sizes: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return buffers and addresses int64 [N], -1 for images that the engines do not support."""
        images = len(lengths)
        threads = min(_THREADS, -(-images // _MIN_IMAGES_PER_THREAD))
        edges = [images * thread // threads for thread in range(threads + 1)]
        byte_edges = [0, *lengths.cumsum(0).tolist()]

        def decode_part(thread: int) -> tuple[Tensor, Tensor]:
            first, last = edges[thread], edges[thread + 1]
            jpegs = data[byte_edges[first] : byte_edges[last]]
            return self._decode_part(thread, jpegs, lengths[first:last], sizes[first:last])

        buffers, addresses = zip(*self._threads.map(decode_part, range(threads)), strict=True)
        return list(buffers), torch.cat(addresses)

    def _decode_part(self, thread: int, data: Tensor, lengths: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        stream = self._streams[thread]
        with self._locks[thread], torch.cuda.stream(stream):
            planes, offsets = self._engines[thread].decode(data, lengths, sizes)
            stream.synchronize()
        return planes, torch.where(offsets < 0, -1, offsets + planes.data_ptr())

    def _decode_by_torchvision(self, jpegs: list[Tensor]) -> list[Tensor]:
        """Decode progressive images, and all images on a GPU without engines."""
        from torchvision.io import ImageReadMode, decode_jpeg

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 announces a move, not yet made
            return list(decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=self._device))


_decoders = functools.cache(_Decoders)


def prefetch(batches: Iterator[_BatchT], device: torch.device) -> Generator[_BatchT]:
    """Make `batches` in a separate thread and stream from this call on, while the GPU trains on the batches before."""
    stream = torch.cuda.Stream(device, priority=-1)  # ahead of the training step: its kernels are many, these small
    ready_batches: queue.Queue[Any] = queue.Queue(_PREFETCHED)
    stopped = threading.Event()

    def put(item: Any) -> None:
        while not stopped.is_set():
            try:
                return ready_batches.put(item, timeout=0.2)
            except queue.Full:
                continue

    def make_batches() -> None:
        try:
            torch.cuda.set_device(device)
            with torch.cuda.stream(stream):
                for batch in batches:
                    put((batch, stream.record_event()))
                    if stopped.is_set():
                        return
            put(None)
        except BaseException as error:
            put(error)

    def take_batches() -> Generator[Any]:
        thread = threading.Thread(target=make_batches, daemon=True)
        thread.start()
        try:
            yield  # to the `next` below: `close` ends the thread even if no batch has been taken
            while (item := ready_batches.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                batch, made = item
                current = torch.cuda.current_stream(device)
                current.wait_event(made)
                for tensor in batch.tensors():
                    tensor.record_stream(current)  # keeps its memory until the step has read it
                yield batch
        finally:
            stopped.set()
            with suppress(queue.Empty):  # lets the thread go on at once
                ready_batches.get_nowait()
            thread.join()

    taken_batches = take_batches()
    next(taken_batches)
    return taken_batches
