"""data=dali: NVIDIA DALI decodes the crop, resizes and flips, on the GPU if there is one."""

from typing import Any

from ..vision.dali import DaliDecoder, require_dali
from ..vision.pipeline import Transform
from .data import ImageNetData


class DaliImageNetData(ImageNetData):
    """The reading processes and crops of data=torch; DALI decodes and transforms."""

    loader = "dali"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_dali()
        super().__init__(*args, **kwargs)

    def build_decoder(self, transform: Transform, train: bool) -> DaliDecoder:
        """Return a decoder that resizes without antialiasing."""
        return DaliDecoder(self.image_size, antialias=False, threads=self._workers(), device=self.device)
