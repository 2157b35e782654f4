"""data=torch: the GPU decodes JPEGs, crops, resizes and flips on NVIDIA GPUs, elsewhere the worker processes do."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....runner.core.errors import ConfigurationError
from ..vision.gpu_decode import can_decode
from ..vision.pipeline import GeneratedSource, GpuDecoder, Transform
from .data import ImageNetData


class TorchImageNetData(ImageNetData):
    """Worker processes read; the GPU or the workers decode."""

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

    def build_decoder(self, transform: Transform, train: bool) -> GpuDecoder | None:
        """Return a decoder on the GPU, or None if the workers decode."""
        return None if self._workers_decode() else GpuDecoder(transform, self.device)

    def build_warm_up_source(self) -> GeneratedSource:
        """Return a random image of class 0."""
        return GeneratedSource(480, 640, np.array(0))

    def mlperf_params(self) -> dict[str, Any]:
        """Add what decodes."""
        return super().mlperf_params() | {"timetrial_decoder": "workers" if self._workers_decode() else "gpu"}

    def _workers_decode(self) -> bool:
        supported = can_decode(self.device)
        if self.settings.decoder == "gpu" and not supported:
            raise ConfigurationError("recipe.data.decoder=gpu needs an NVIDIA GPU and custom kernels: use workers.")
        return self.settings.decoder == "workers" or not supported
