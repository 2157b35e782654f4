"""data=torch: on NVIDIA cards JPEGs are decoded, cropped, resized and flipped on the card; elsewhere by the workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....datasets.formats import jpeg
from ....runner.core.errors import ConfigurationError
from ....runner.training.workload import Batch
from ..vision import gpu_decode
from ..vision.decode_workers import DecodedBatch, EncodedBatch, Plan
from . import kernels
from .data import ImageNetData


class TorchImageNetData(ImageNetData):
    """Worker processes read; the card or they decode."""

    loader = "torch"

    @dataclass
    class Settings(ImageNetData.Settings):
        """The settings of all loaders, and where images are decoded."""

        decoder: str | None = None
        """Where images are decoded, gpu or workers; null: on the GPU if it can, else in the workers."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.decoder not in (None, "gpu", "workers"):
                raise ValueError(f"decoder must be gpu or workers, not {self.decoder}.")

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """Random pixels; starts the card's JPEG engines too, on an image of our own."""
        if not self._readers_decode():
            sample = jpeg.encode(np.zeros((64, 64, 3), dtype=np.uint8))
            box = torch.tensor([[0, 0, 64, 64]], dtype=torch.int32)
            data, one = torch.frombuffer(bytearray(sample), dtype=torch.uint8), torch.tensor([len(sample)])
            batch = EncodedBatch(data, one, box[:, 2:], box, one > 0, (one,), [0])
            list(gpu_decode.prefetch(self._decoded(True, iter([batch])), self._device))
        return super().synthetic_train_batches()

    def mlperf_params(self) -> dict[str, Any]:
        """Who decodes is on record too."""
        return super().mlperf_params() | {"timetrial_decoder": "workers" if self._readers_decode() else "gpu"}

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        batches = self.encoded(train, epoch, plan)
        if not gpu_decode.is_supported(self._device):
            return batches
        if self._readers_decode():
            return gpu_decode.prefetch((gpu_decode.upload(batch, self._device) for batch in batches), self._device)
        return gpu_decode.prefetch(self._decoded(train, batches), self._device)

    def _readers_decode(self) -> bool:
        asked = self._settings.decoder
        if asked == "gpu" and not gpu_decode.is_supported(self._device):
            raise ConfigurationError("recipe.data.decoder=gpu needs an NVIDIA GPU: use workers.")
        return asked == "workers" or not gpu_decode.is_supported(self._device)

    def _decoded(self, train: bool, batches: Iterator[EncodedBatch]) -> Iterator[DecodedBatch]:
        for batch in batches:
            try:
                yield gpu_decode.decode(batch, self._look, self._device)
            except RuntimeError as error:
                raise self._readers[train].locate_bad_image(batch, error) from error

    def _look(self, addresses: Tensor, batch: EncodedBatch) -> Tensor:
        boxes = (batch.sizes, batch.boxes, batch.flipped)
        return kernels.crop_and_resize(addresses, *boxes, self.image_size, self._device)
