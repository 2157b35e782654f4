"""data=dali: NVIDIA DALI decodes the crop, resizes and flips, on the card where there is one."""

from collections.abc import Iterator
from typing import Any

from ..vision import dali
from ..vision.decode_workers import DecodedBatch, Plan, worker_count
from .data import ImageNetData


class DaliImageNetData(ImageNetData):
    """The same reading processes and crops as data=torch; DALI makes the pixels."""

    loader = "dali"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        dali.require()
        super().__init__(*arguments, **named)
        self._views = {
            train: dali.Views(
                self._readers[train],
                self.image_size,
                antialias=False,
                threads=worker_count(self._settings.workers, self._sharding.ranks),
                device=self._device,
            )
            for train in (True, False)
        }

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        return self._views[train].read(epoch, plan)
