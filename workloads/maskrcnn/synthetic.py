"""data=synthetic: random pixels, boxes and rectangular outlines, by default in COCO's sizes; nothing is read."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...runner.core.progress import ProgressCallback
from ..common.detection.data import CocoData, synthetic_coco_set
from ..common.detection.synthetic import SyntheticCocoBatches, check_sizes
from .data import MaskRCNNData

_EDGES_PER_BOX = 40  # about as many as COCO's outlines have


class SyntheticMaskRCNNData(MaskRCNNData):
    """The loader of `timetrial throughput`: what a GPU does when it never waits for data. All images are wide."""

    loader = "synthetic"

    @dataclass
    class Settings(MaskRCNNData.Settings):
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
            check_sizes(self.classes, self.train_count, self.val_count, self.boxes)

    @classmethod
    def prepare_data(cls, settings: CocoData.Settings, progress: ProgressCallback) -> None:
        """Do nothing: there is no dataset."""

    def _read_sizes(self) -> tuple[int, int]:
        sizes = self.settings
        self.num_classes, self.max_boxes = sizes.classes, sizes.boxes
        self.truth = self.val_set = synthetic_coco_set(sizes.val_count, sizes.boxes, sizes.classes)
        return sizes.train_count, sizes.val_count

    def _open_sets(self) -> None:
        pass

    def _build_batch_source(self) -> SyntheticCocoBatches:
        return SyntheticCocoBatches()

    def _read_max_edges(self) -> int:
        return _EDGES_PER_BOX * self.max_boxes

    def _aspect_group_sizes(self) -> Sequence[int]:
        return (self.settings.train_count,)

    def _eval_group_sizes(self) -> Sequence[int]:
        return ()
