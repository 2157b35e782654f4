"""data=dali: NVIDIA DALI decodes the crop, resizes, flips and color-jitters it, on the GPU if there is one."""

from typing import Any

from ..common.vision.dali import DaliDecoder, require_dali
from ..common.vision.pipeline import Transform
from .data import SSDData


class DaliSSDData(SSDData):
    """The reading processes, crops and color factors of data=torch; DALI decodes and transforms."""

    loader = "dali"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_dali()
        super().__init__(*args, **kwargs)

    def build_decoder(self, transform: Transform, train: bool) -> DaliDecoder:
        """Return a decoder that resizes with antialiasing and, in training, jitters colors."""
        from . import dali_color_jitter

        augment = dali_color_jitter.jitter if train else None
        workers = self._workers()
        return DaliDecoder(self.image_size, antialias=True, threads=workers, device=self.device, augment=augment)
