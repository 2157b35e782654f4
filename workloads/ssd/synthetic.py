"""data=synthetic: random pixels and boxes that lie on the device, in COCO's sizes; nothing is read and learned."""

from dataclasses import dataclass

from ..common.detection.synthetic import SyntheticCoco
from .data import Photographs


class SyntheticPhotographs(SyntheticCoco, Photographs):
    """The loader of `timetrial throughput`."""

    @dataclass
    class Settings(SyntheticCoco.Settings, Photographs.Settings):
        """COCO's validation images without a box are not looked at."""

        val_count: int = 4_952
