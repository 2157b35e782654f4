"""data=torch: on NVIDIA cards JPEGs are decoded, cropped, resized and flipped on the card; elsewhere by the workers."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from timetrial.datasets import jpeg
from timetrial.runner.workload import Batch
from timetrial.workloads.resnet50 import on_card
from timetrial.workloads.resnet50.data import Images
from timetrial.workloads.resnet50.reading import Decoded, Encoded, Plan, Reader


class TorchImages(Images):
    """Worker processes read; who decodes is decided by the device."""

    loader = "torch"

    def synthetic_train(self) -> Sequence[Batch]:
        """Random pixels; starts the readers and the card's JPEG engines too, on nothing and on an image of our own."""
        for train in (True, False):
            list(self._pixels(train, 0, []))
        if on_card.decodes(self._device):
            sample = jpeg.encode(np.zeros((64, 64, 3), dtype=np.uint8))
            box = torch.tensor([[0, 0, 64, 64]], dtype=torch.int32)
            data, one = torch.frombuffer(bytearray(sample), dtype=torch.uint8), torch.tensor([len(sample)])
            batch = Encoded(data, one, box[:, 2:], box, one > 0, one, [0])
            list(on_card.ahead(self._decoded(self._reader(True, False), iter([batch])), self._device))
        return super().synthetic_train()

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        if not on_card.decodes(self._device):
            return self.encoded(train, epoch, plan, decode=True)
        return on_card.ahead(self._decoded(self._reader(train, False), self.encoded(train, epoch, plan)), self._device)

    def _decoded(self, reader: Reader, batches: Iterator[Encoded]) -> Iterator[Decoded]:
        for batch in batches:
            try:
                yield on_card.decode(batch, self.image_size, self._device)
            except RuntimeError as error:
                raise reader.blame(batch, error) from error
