"""data=dali: NVIDIA DALI decodes the crop, resizes and flips, on the card where there is one."""

from collections.abc import Iterator
from typing import Any

from ..vision import dali
from ..vision.decode_workers import Decoded, Plan, workers_of
from .data import Images


class DaliImages(Images):
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
                threads=workers_of(self._settings.workers, self._sharding.ranks),
                device=self._device,
            )
            for train in (True, False)
        }

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        return self._views[train].read(epoch, plan)
