"""data=synthetic: random pixels, boxes and rectangles for outlines, in COCO's sizes; nothing is read and learned."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from timetrial.runner.workload import Batch
from timetrial.workloads.common.detection_data import CocoImages, Progress, random_set
from timetrial.workloads.common.image_data import SameBatch
from timetrial.workloads.common.reading import Reader
from timetrial.workloads.maskrcnn.data import Photographs


class SyntheticPhotographs(SameBatch, Photographs):
    """What a card can do when nothing feeds it: the loader of `timetrial throughput`. All images are wide."""

    @dataclass
    class Settings(Photographs.Settings):
        """The sizes of COCO 2017, with `boxes` on every image."""

        classes: int = 80
        train_count: int = 117_266
        val_count: int = 5_000
        boxes: int = 7

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.classes, self.train_count, self.val_count, self.boxes) < 1:
                raise ValueError("classes, train_count, val_count and boxes must be 1 or more.")

    @classmethod
    def make_ready(cls, settings: CocoImages.Settings, progress: Progress) -> None:
        """There is nothing to prepare."""

    def eval(self) -> Iterable[Batch]:
        """The same pixels for every image."""
        pixels, sizes, _ = self.synthetic_eval().content
        for span in self._eval_spans():
            numbers = torch.arange(span.start, span.stop, device=self._device)
            some = slice(len(numbers))
            yield Batch((pixels[some], sizes[some], numbers), len(numbers), self.eval_size, self.eval_size)

    def _open(self) -> tuple[int, int]:
        chosen = self._settings
        self.num_classes, self.most = chosen.classes, chosen.boxes
        self.truth = self.val_set = random_set(chosen.val_count, chosen.boxes, chosen.classes)
        return chosen.train_count, chosen.val_count

    def _groups(self) -> Sequence[NDArray[np.int64]]:
        return (np.arange(self._settings.train_count),)

    def _start_readers(self) -> dict[bool, Reader]:
        return {}
