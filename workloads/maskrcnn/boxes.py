"""Anchors and box arithmetic of Mask R-CNN.

Boxes are left, top, right, bottom in pixels with inclusive right and bottom, as in MLPerf's reference: a width is
right - left + 1. Shapes: N images, A anchors, M boxes per image, [..., 4] boxes.
"""

import functools
import math

import torch
from torch import Tensor

STRIDES, ANCHOR_SIZES, ASPECT_RATIOS = (4, 8, 16, 32, 64), (32, 64, 128, 256, 512), (0.5, 1.0, 2.0)
MAX_LOG_SCALE = math.log(1000 / 16)  # of a decoded width or height
DeltaWeights = tuple[float, float]  # of center offsets and of log sizes


@functools.cache  # anchors are made on the CPU: copying them at each step would wait for the device
def anchors(map_sizes: tuple[tuple[int, int], ...], device: torch.device | None = None) -> list[Tensor]:
    """Return float32 [rows * columns * 3, 4] of each level, in that order, for maps of size (rows, columns).

    Shapes are rounded at the size of the stride and then enlarged, as in Faster R-CNN: at stride 16 and size 128 an
    aspect ratio (height over width) of 0.5 is 184 by 96 pixels.
    """
    levels = []
    for (rows, columns), stride, shapes in zip(map_sizes, STRIDES, anchor_shapes(), strict=True):
        half_size = torch.tensor([(width - 1, height - 1) for width, height in shapes]) / 2
        cell_anchors = torch.cat([-half_size, half_size], 1) + (stride - 1) / 2
        y, x = (torch.arange(count) * float(stride) for count in (rows, columns))
        shift = torch.stack([*torch.meshgrid(x, y, indexing="xy")] * 2, 2)
        levels.append((shift[:, :, None] + cell_anchors).view(-1, 4).to(device))
    return levels


def anchor_shapes() -> list[list[tuple[float, float]]]:
    """Return width and height of the anchors of each level, by aspect ratio."""
    levels = []
    for stride, size in zip(STRIDES, ANCHOR_SIZES, strict=True):
        shapes = []
        for ratio in ASPECT_RATIOS:
            width = round(math.sqrt(stride * stride / ratio))
            shapes.append((width * size / stride, round(width * ratio) * size / stride))
        levels.append(shapes)
    return levels


def area(boxes: Tensor) -> Tensor:
    """Return the areas [...] of boxes [..., 4]."""
    return (boxes[..., 2] - boxes[..., 0] + 1) * (boxes[..., 3] - boxes[..., 1] + 1)


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union [..., A, M] of boxes [..., A, 4] and [..., M, 4]."""
    boxes, others = boxes[..., :, None, :], others[..., None, :, :]
    top_left = torch.maximum(boxes[..., :2], others[..., :2])
    bottom_right = torch.minimum(boxes[..., 2:], others[..., 2:])
    intersection = (bottom_right - top_left + 1).clamp(min=0).prod(-1)
    return intersection / (area(boxes) + area(others) - intersection)


def encode(boxes: Tensor, references: Tensor, weights: DeltaWeights) -> Tensor:
    """Return the deltas [..., 4] from references to boxes: center offsets over the reference's size, and log sizes."""
    center, size = _center_and_size(boxes)
    reference_center, reference_size = _center_and_size(references)
    offset = (center - reference_center) / reference_size * weights[0]
    return torch.cat([offset, (size / reference_size).log() * weights[1]], -1)


def decode(deltas: Tensor, references: Tensor, weights: DeltaWeights) -> Tensor:
    """Return the boxes [..., 4] of `deltas`, the inverse of `encode`; log sizes are clamped to log(1000 / 16)."""
    reference_center, reference_size = _center_and_size(references)
    center = deltas[..., :2] / weights[0] * reference_size + reference_center
    size = (deltas[..., 2:] / weights[1]).clamp(max=MAX_LOG_SCALE).exp() * reference_size
    return torch.cat([center - size / 2, center + size / 2 - 1], -1)


def clip(boxes: Tensor, image_sizes: Tensor) -> Tensor:
    """Clip boxes [N, ..., 4] to images of `image_sizes` [N, 2] (height, width)."""
    limits = (image_sizes.flip(1).repeat(1, 2) - 1).view(len(image_sizes), *[1] * (boxes.ndim - 2), 4)
    return torch.minimum(boxes, limits.to(boxes.dtype)).clamp(min=0)


def _center_and_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = boxes[..., 2:] - boxes[..., :2] + 1
    return boxes[..., :2] + size / 2, size
