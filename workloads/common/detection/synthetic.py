"""data=synthetic for detectors: random pixels and boxes on the device; nothing is read and nothing is learned."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ....runner.core.progress import ProgressCallback
from ....runner.training.workload import Batch
from ..vision.decode_workers import WorkerReader
from ..vision.image_data import SyntheticData
from .data import CocoData, synthetic_coco_set


class SyntheticCocoData(SyntheticData, CocoData):
    """To be named before a task's own images: what a card can do when nothing feeds it."""

    @dataclass
    class Settings(CocoData.Settings):
        """The settings of all loaders, and the size of the dataset; the defaults are COCO's."""

        classes: int = 80
        """Number of classes."""
        train_count: int = 117_266
        """Number of training images."""
        val_count: int = 5_000
        """Number of validation images."""
        boxes: int = 7
        """Boxes of an image."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.classes, self.train_count, self.val_count, self.boxes) < 1:
                raise ValueError("classes, train_count, val_count and boxes must be 1 or more.")

    @classmethod
    def prepare_data(cls, settings: CocoData.Settings, progress: ProgressCallback) -> None:
        """There is nothing to prepare."""

    def eval_batches(self) -> Iterable[Batch]:
        """The same pixels for every image."""
        *parts, _ = self.batch.inputs
        for span in self._eval_spans():
            numbers = torch.arange(span.start, span.stop, device=self._device)
            content = (*(part[: len(numbers)] for part in parts), numbers)
            yield Batch(content, len(numbers), self.eval_size, self.eval_size)

    def _open(self) -> tuple[int, int]:
        chosen = self._settings
        self.num_classes, self.max_boxes = chosen.classes, chosen.boxes
        self.truth = self.val_set = synthetic_coco_set(chosen.val_count, chosen.boxes, chosen.classes)
        return chosen.train_count, chosen.val_count

    def _start_readers(self) -> dict[bool, WorkerReader]:
        return {}
