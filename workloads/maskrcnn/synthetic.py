"""data=synthetic: random pixels, boxes and rectangles for outlines, in COCO's sizes; nothing is read and learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.detection.synthetic import SyntheticCocoData
from .data import MaskRCNNData


class SyntheticMaskRCNNData(SyntheticCocoData, MaskRCNNData):
    """The loader of `timetrial throughput`. All images are wide."""

    @dataclass
    class Settings(SyntheticCocoData.Settings, MaskRCNNData.Settings):
        """Both sizes."""

    def _groups(self) -> Sequence[NDArray[np.int64]]:
        return (np.arange(self._settings.train_count),)
