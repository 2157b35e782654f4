"""data=torch: on NVIDIA cards JPEGs are decoded, cropped, resized and flipped on the card; elsewhere by the workers."""

import queue
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from timetrial.datasets import jpeg
from timetrial.runner.workload import Batch
from timetrial.workloads.resnet50 import kernels
from timetrial.workloads.resnet50.data import Images
from timetrial.workloads.resnet50.reading import Decoded, Encoded, Plan, Reader

_AHEAD = 2  # batches made before they are asked for


class TorchImages(Images):
    """Worker processes read; who decodes is decided by the device."""

    loader = "torch"

    def synthetic_train(self) -> Sequence[Batch]:
        """Random pixels; starts the readers and the card's JPEG engines too, on nothing and on an image of our own."""
        for train in (True, False):
            list(self._pixels(train, 0, []))
        if self._device.type == "cuda":
            sample = jpeg.encode(np.zeros((64, 64, 3), dtype=np.uint8))
            box = torch.tensor([[0, 0, 64, 64]], dtype=torch.int32)
            data, one = torch.frombuffer(bytearray(sample), dtype=torch.uint8), torch.tensor([len(sample)])
            batch = Encoded(data, one, box[:, 2:], box, one > 0, one, [0])
            list(self._on_card(self._reader(True, False), iter([batch])))
        return super().synthetic_train()

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        if self._device.type != "cuda":
            return self.encoded(train, epoch, plan, decode=True)
        batches = self.encoded(train, epoch, plan)
        return ahead(self._on_card(self._reader(train, False), batches), self._device)

    def _on_card(self, reader: Reader, batches: Iterator[Encoded]) -> Iterator[Decoded]:
        for batch in batches:
            images = decode_on_card(reader, batch, self._device)
            pixels = kernels.crop_and_resize(images, batch.boxes, batch.mirrored, self.image_size)
            yield Decoded(pixels, batch.labels.to(self._device, non_blocking=True))


def decode_on_card(reader: Reader, batch: Encoded, device: torch.device) -> list[torch.Tensor]:
    """Each image uint8 [3, height, width], by the card's JPEG engines; raises `DataError` on one that is wrong."""
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 announces a move, not yet made
            return list(decode_jpeg(batch.jpegs(), mode=ImageReadMode.RGB, device=device))
    except RuntimeError as error:
        raise reader.blame(batch, error) from error


def ahead(batches: Iterator[Decoded], device: torch.device) -> Iterator[Decoded]:
    """Makes `batches` in a thread, on a stream of their own, while the card trains on those before."""
    stream = torch.cuda.Stream(device)
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
