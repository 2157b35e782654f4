"""data=synthetic: random pixels and boxes that lie on the device, in COCO's sizes; nothing is read and learned."""

from dataclasses import dataclass

from ..common.detection.synthetic import SyntheticCocoData
from .data import SSDData


class SyntheticSSDData(SyntheticCocoData, SSDData):
    """The loader of `timetrial throughput`."""

    @dataclass
    class Settings(SyntheticCocoData.Settings, SSDData.Settings):
        """COCO's validation images without a box are not looked at."""

        val_count: int = 4_952
