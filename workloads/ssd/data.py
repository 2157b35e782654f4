"""SSD's data: images with a box, cropped, flipped, resized and color-jittered (docs/mlperf_rules.md, "SSD")."""

from dataclasses import dataclass

import torch

from ...datasets.formats.coco import CocoSet
from ...runner.training.seeds import Seeds
from ...runner.training.workload import BatchSharding
from ..common.detection.data import CocoData
from ..common.vision.batches import ImageBatch
from .transforms import EvalTransform, TrainTransform


class SSDData(CocoData):
    """Images resized to squares. Images without a box are neither trained on nor evaluated.

    The targets of a training batch are boxes and labels (`TrainTransform`), of an evaluation batch the images' indices
    int64 [N] in `val_set`.
    """

    @dataclass
    class Settings(CocoData.Settings):
        """Size and cropping of the images."""

        image_size: int = 300
        """Edge of the square images in pixels."""
        crop_attempts: int = 1
        """Random crops that are tried before another crop option is drawn: 1 or 50."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.image_size < 32 or self.crop_attempts < 1:
                raise ValueError("image_size must be 32 or more, crop_attempts 1 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.image_size, self.crop_attempts = settings.image_size, settings.crop_attempts
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)

    @classmethod
    def select_images(cls, dataset: CocoSet, train: bool) -> CocoSet:
        """Return the images with a box."""
        return dataset.with_boxes()

    def build_transform(self, train: bool) -> EvalTransform:
        """Return random crops with color jitter for training, whole images for evaluation."""
        if train:
            return TrainTransform(self.image_size, self.max_boxes, self.crop_attempts)
        return EvalTransform(self.image_size)

    def _random_train_images(self, size: int) -> ImageBatch:
        corner, box_size = torch.rand(size, self.max_boxes, 2) * 0.5, torch.rand(size, self.max_boxes, 2) * 0.4 + 0.1
        labels = torch.randint(1, self.num_classes + 1, (size, self.max_boxes))
        return ImageBatch(self._random_pixels(size), (torch.cat([corner, corner + box_size], 2), labels))

    def _random_eval_images(self, size: int) -> ImageBatch:
        """Return random pixels, all with the index of the first image."""
        return ImageBatch(self._random_pixels(size), (torch.zeros(size, dtype=torch.int64),))

    def _random_pixels(self, size: int) -> torch.Tensor:
        return torch.randint(256, (size, self.image_size, self.image_size, 3), dtype=torch.uint8)
