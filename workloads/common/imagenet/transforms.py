"""Crop, resize and flip of ImageNet's images (docs/mlperf_rules.md, "ResNet-50")."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from ..vision.batches import EncodedBatch
from ..vision.gpu_decode import GpuImages
from ..vision.pipeline import Crop, Transform
from . import crops


@dataclass(frozen=True)
class ImageNetTransform(Transform):
    """Random crops of at least `min_crop_area` of the image, flipped with probability 0.5; None takes the center crop.

    Crops are resized to squares of `size` pixels. The target is the label.
    """

    size: int
    min_crop_area: float | None

    def sample(self, target: Any, height: int, width: int, generator: np.random.Generator) -> Crop:
        """Draw the crop box and the flip."""
        if self.min_crop_area is None:
            return Crop(crops.center_crop_box(height, width), False, (target,))
        box = crops.random_crop_box(height, width, self.min_crop_area, generator)
        return Crop(box, bool(generator.random() < 0.5), (target,))

    def cpu(self, pixels: Tensor, crop: Crop) -> Tensor:
        """Crop, resize and flip one image."""
        top, left, height, width = crop.box
        resized = resize(pixels[top : top + height, left : left + width], self.size)
        return resized.flip(1) if crop.flipped else resized

    def gpu(self, images: GpuImages, batch: EncodedBatch) -> Tensor:
        """Crop, resize and flip a batch by one kernel."""
        from . import kernels  # not at the top: importing Triton after TensorFlow can crash

        return kernels.crop_and_resize(images, batch.boxes, batch.flipped, self.size)


def resize(pixels: Tensor, size: int) -> Tensor:
    """Resize uint8 [height, width, 3] to [size, size, 3]: bilinear, without antialiasing.

    MLPerf's TF1 reference samples on a grid from the top left. timetrial samples between pixel centers, as PyTorch and
    TF2 do, which shifts the image by less than a pixel.
    """
    image = pixels.permute(2, 0, 1)[None]
    if image.shape[-2:] != (size, size):
        image = F.interpolate(image, (size, size), mode="bilinear", align_corners=False)
    return image[0].permute(1, 2, 0)
