"""Mask R-CNN's boxes: left, top, right, bottom in pixels, widths inclusive, as its reference counts them.

Shapes: N images, A anchors, M boxes of an image, [..., 4] boxes.
"""

import functools
import math

import torch
from torch import Tensor

STRIDES, SIZES, RATIOS = (4, 8, 16, 32, 64), (32, 64, 128, 256, 512), (0.5, 1.0, 2.0)
LONGEST = math.log(1000 / 16)  # of a logarithm of sizes
Weights = tuple[float, float]  # of differences of centres and of sizes


@functools.cache  # they are made on the processor: sending them there again would wait for the device
def anchors(maps: tuple[tuple[int, int], ...], device: torch.device | None = None) -> list[Tensor]:
    """Of each level float32 [rows * columns * 3, 4], in this order, for maps of so many (rows, columns).

    Shapes are rounded at the size of a stride and then enlarged, as the reference has them since Faster R-CNN: at
    stride 16 of size 128 a ratio (height by width) of a half is 184 by 96.
    """
    made = []
    for (rows, columns), stride, shapes in zip(maps, STRIDES, anchor_shapes(), strict=True):
        half = torch.tensor([(width - 1, height - 1) for width, height in shapes]) / 2
        window = torch.cat([-half, half], 1) + (stride - 1) / 2
        y, x = (torch.arange(count) * float(stride) for count in (rows, columns))
        shift = torch.stack([*torch.meshgrid(x, y, indexing="xy")] * 2, 2)
        made.append((shift[:, :, None] + window).view(-1, 4).to(device))
    return made


def anchor_shapes() -> list[list[tuple[float, float]]]:
    """Width and height of each level's anchors, by ratio."""
    shapes = []
    for stride, size in zip(STRIDES, SIZES, strict=True):
        level = []
        for ratio in RATIOS:
            width = round(math.sqrt(stride * stride / ratio))
            level.append((width * size / stride, round(width * ratio) * size / stride))
        shapes.append(level)
    return shapes


def area(boxes: Tensor) -> Tensor:
    """[...] of boxes [..., 4]."""
    return (boxes[..., 2] - boxes[..., 0] + 1) * (boxes[..., 3] - boxes[..., 1] + 1)


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union [..., A, M] of boxes [..., A, 4] and [..., M, 4]."""
    one, other = boxes[..., :, None, :], others[..., None, :, :]
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = (high - low + 1).clamp(min=0).prod(-1)
    return shared / (area(one) + area(other) - shared)


def encode(boxes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """[..., 4]: how boxes differ from references: centres by its size, logarithms of sizes; times the weights."""
    centre, size = _centred(boxes)
    at, of = _centred(references)
    return torch.cat([(centre - at) / of * weights[0], (size / of).log() * weights[1]], -1)


def decode(differences: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """The boxes [..., 4] that `encode` was given; logarithms are cut off at that of 1000 / 16."""
    at, of = _centred(references)
    centre = differences[..., :2] / weights[0] * of + at
    size = (differences[..., 2:] / weights[1]).clamp(max=LONGEST).exp() * of
    return torch.cat([centre - size / 2, centre + size / 2 - 1], -1)


def clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes [N, ..., 4] within images of `sizes` [N, 2] (height, width)."""
    edges = (sizes.flip(1).repeat(1, 2) - 1).view(len(sizes), *[1] * (boxes.ndim - 2), 4)
    return torch.minimum(boxes, edges.to(boxes.dtype)).clamp(min=0)


def _centred(boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = boxes[..., 2:] - boxes[..., :2] + 1
    return boxes[..., :2] + size / 2, size
