"""data=dali: NVIDIA DALI decodes the crop, shrinks, mirrors and recolours it, on the card where there is one."""

from collections.abc import Iterator
from typing import Any

from ..common.vision import dali
from ..common.vision.decode_workers import DecodedBatch, Plan, worker_count
from .data import SSDData


class DaliSSDData(SSDData):
    """The same reading processes, crops and colour factors as data=torch; DALI makes the pixels."""

    loader = "dali"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        dali.require()
        super().__init__(*arguments, **named)
        from . import dali_color_jitter

        self._made = {
            train: dali.Views(
                self._readers[train],
                self.image_size,
                antialias=True,
                threads=worker_count(self._settings.workers, self._sharding.ranks),
                device=self._device,
                finish=dali_color_jitter.jitter if train else None,
                uses=(2, 3) if train else (),  # the factors and the order of the colours
            )
            for train in (True, False)
        }

    def _readers_decode(self) -> bool:
        return False

    def _views(self, train: bool, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        return self._made[train].read(epoch, plan)
