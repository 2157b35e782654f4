"""SSD's transforms: crop, resize, flip and color jitter of images and boxes (docs/mlperf_rules.md, "SSD")."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..common.detection import image_kernels
from ..common.detection.data import CocoImage
from ..common.vision.batches import EncodedBatch
from ..common.vision.gpu_decode import GpuImages
from ..common.vision.pipeline import Crop, Transform
from . import color_jitter, crops, kernels


@dataclass(frozen=True)
class EvalTransform(Transform):
    """Whole images resized to squares of `size` pixels. The target is the image's index, int64 []."""

    size: int

    def sample(self, target: CocoImage, height: int, width: int, generator: np.random.Generator) -> Crop:
        """Return the whole image; nothing is drawn."""
        return Crop((0, 0, height, width), False, (np.array(target.index),))

    def cpu(self, pixels: Tensor, crop: Crop) -> Tensor:
        """Crop, resize as Pillow does (bilinear, antialiased) and flip one image."""
        top, left, height, width = crop.box
        image = pixels[top : top + height, left : left + width].permute(2, 0, 1)[None]
        resized = F.interpolate(image, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        resized = resized[0].permute(1, 2, 0)
        return resized.flip(1) if crop.flipped else resized

    def gpu(self, images: GpuImages, batch: EncodedBatch) -> Tensor:
        """Crop, resize and flip a batch."""
        square = (self.size, self.size)
        return image_kernels.crop_and_resize(
            images.addresses, batch.sizes, batch.boxes, batch.flipped, torch.tensor([square] * len(batch.boxes)),
            square, (0, 0, 0), images.device,
        )  # fmt: skip


@dataclass(frozen=True)
class TrainTransform(EvalTransform):
    """Random crops, flipped with probability 0.5, with color jitter.

    The targets are boxes as fractions of the crop, float32 [max_boxes, 4] (left, top, right, bottom), and labels int64
    [max_boxes] from 1; 0 pads both. The parameters are the factors float32 [4] and the order int64 [4] of the color
    adjustments (color_jitter.py).
    """

    max_boxes: int
    crop_attempts: int

    def sample(self, target: CocoImage, height: int, width: int, generator: np.random.Generator) -> Crop:
        """Draw the crop, the flip and the color jitter."""
        crop, kept, boxes = crops.crop(target.normalized_boxes(), generator, self.crop_attempts)
        left, top, right, bottom = crop
        flipped = bool(generator.random() < 0.5)
        if flipped:
            boxes = np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], 1)
        factors, order = color_jitter.jitter_factors(generator)
        first, last = (int(top * height), int(left * width)), (int(bottom * height), int(right * width))
        box = (*first, max(1, last[0] - first[0]), max(1, last[1] - first[1]))
        targets = (
            _pad(boxes.astype(np.float32), self.max_boxes),
            _pad(target.labels()[kept], self.max_boxes),
        )
        return Crop(box, flipped, targets, (np.array(factors, dtype=np.float32), np.array(order, dtype=np.int64)))

    def cpu(self, pixels: Tensor, crop: Crop) -> Tensor:
        """Crop, resize, flip and color-jitter one image."""
        factors, order = crop.params
        return color_jitter.jitter_image(super().cpu(pixels, crop).contiguous(), factors.tolist(), order.tolist())

    def gpu(self, images: GpuImages, batch: EncodedBatch) -> Tensor:
        """Crop, resize, flip and color-jitter a batch."""
        pixels = super().gpu(images, batch)
        factors, order = (param.to(images.device) for param in batch.params)
        return kernels.jitter(pixels, factors, order)


def _pad(rows: NDArray[Any], length: int) -> NDArray[Any]:
    """Append zeros to `rows`: [length, ...]."""
    return np.concatenate([rows, np.zeros((length - len(rows), *rows.shape[1:]), rows.dtype)])
