"""What an NVIDIA card does for a loader: decoding, cropping and resizing, in a thread and on a stream of their own."""

import queue
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from timetrial.workloads.resnet50 import kernels, nvjpeg
from timetrial.workloads.resnet50.reading import Decoded, Encoded

_AHEAD = 2  # batches made before they are asked for


def decodes(device: torch.device) -> bool:
    """Whether `device` is a card that decodes JPEGs for PyTorch."""
    return device.type == "cuda" and torch.version.hip is None


def decode(batch: Encoded, size: int, device: torch.device) -> Decoded:
    """The batch cropped and resized to `size`, on the card; raises RuntimeError where an image is wrong."""
    images, addresses = _planes(batch, device)
    pixels = kernels.crop_and_resize(addresses, batch.sizes, batch.boxes, batch.mirrored, size, device)
    labels = batch.labels.to(device)
    # The JPEGs, the images and the engines' own memory are used again from here on.
    torch.cuda.current_stream(device).synchronize()
    del images
    return Decoded(pixels, labels)


def _planes(batch: Encoded, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Each image's planes uint8 [3, height, width] on the card: tensors that hold them, and addresses int64 [N].

    The card's JPEG engines decode what they can; torchvision's decoder does the rest (and all, on a card without
    engines).
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    held: list[Tensor] = []
    addresses, left = torch.zeros(len(batch.lengths), dtype=torch.int64), list(range(len(batch.lengths)))
    if engines := nvjpeg.engines(device):
        planes, places = engines.decode(batch.data, batch.lengths, batch.sizes)
        held.append(planes)
        addresses = places + planes.data_ptr()
        left = (places < 0).nonzero().flatten().tolist()
    if left:
        jpegs = batch.jpegs()
        torch.cuda.current_stream(device).synchronize()  # torchvision's stream heeds no other's use of the memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 announces a move, not yet made
            rest = decode_jpeg([jpegs[index] for index in left], mode=ImageReadMode.RGB, device=device)
        addresses[left] = torch.tensor([image.data_ptr() for image in rest])
        held += rest
    return held, addresses


def ahead(batches: Iterator[Decoded], device: torch.device) -> Iterator[Decoded]:
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
            for tensor in (batch.pixels, batch.labels):
                tensor.record_stream(current)  # its memory is not given away while the step still reads it
            yield batch
    finally:
        over.set()
        thread.join()
