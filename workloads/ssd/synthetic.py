"""data=synthetic: random pixels and boxes that lie on the device, in COCO's sizes; nothing is read and learned."""

from dataclasses import dataclass

from ..common.detection.synthetic import SyntheticCocoData
from .data import SSDData


class SyntheticSSDData(SyntheticCocoData, SSDData):
    """The loader of `timetrial throughput`."""

    @dataclass
    class Settings(SyntheticCocoData.Settings, SSDData.Settings):
        """Sizes of COCO and of SSD's images."""

        val_count: int = 4_952
        """Number of validation images; those of COCO without a box are not evaluated."""
