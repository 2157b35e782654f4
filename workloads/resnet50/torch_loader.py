"""data=torch: on NVIDIA cards JPEGs are decoded, cropped, resized and flipped on the card; elsewhere by the workers."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from timetrial.datasets import jpeg
from timetrial.runner.workload import Batch
from timetrial.workloads.resnet50 import on_card
from timetrial.workloads.resnet50.data import Images
from timetrial.workloads.resnet50.reading import Decoded, Encoded, Plan


class TorchImages(Images):
    """Worker processes read; who decodes is decided by the device."""

    loader = "torch"

    def synthetic_train(self) -> Sequence[Batch]:
        """Random pixels; starts the card's JPEG engines too, on an image of our own."""
        if on_card.decodes(self._device):
            sample = jpeg.encode(np.zeros((64, 64, 3), dtype=np.uint8))
            box = torch.tensor([[0, 0, 64, 64]], dtype=torch.int32)
            data, one = torch.frombuffer(bytearray(sample), dtype=torch.uint8), torch.tensor([len(sample)])
            batch = Encoded(data, one, box[:, 2:], box, one > 0, one, [0])
            list(on_card.ahead(self._decoded(True, iter([batch])), self._device))
        return super().synthetic_train()

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        batches = self.encoded(train, epoch, plan)
        return batches if self._readers_decode() else on_card.ahead(self._decoded(train, batches), self._device)

    def _readers_decode(self) -> bool:
        return not on_card.decodes(self._device)

    def _decoded(self, train: bool, batches: Iterator[Encoded]) -> Iterator[Decoded]:
        for batch in batches:
            try:
                yield on_card.decode(batch, self.image_size, self._device)
            except RuntimeError as error:
                raise self._readers[train].blame(batch, error) from error
