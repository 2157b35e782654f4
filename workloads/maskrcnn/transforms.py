"""Mask R-CNN's transforms: images scaled and flipped, with boxes and outlines (docs/mlperf_rules.md, "Mask R-CNN").

Shapes: N images, M boxes of an image, E edges of all its outlines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..common.detection import image_kernels
from ..common.detection.data import CocoImage
from ..common.vision.batches import EncodedBatch
from ..common.vision.gpu_decode import GpuImages
from ..common.vision.pipeline import Arrays, Crop, Transform, stack_arrays
from .model import MEAN

PAD_COLOR = tuple(round(mean) for mean in MEAN)  # about 0 after normalization
CANVAS_STRIDE = 32  # pixels: that of the pyramid's coarsest map, of which a canvas is a multiple


def canvas_size(short_edge: int, long_edge: int, wide: bool) -> tuple[int, int]:
    """Return height and width in pixels of the canvas of wide images, or of the others."""
    short, long = (-(-edge // CANVAS_STRIDE) * CANVAS_STRIDE for edge in (short_edge, long_edge))
    return (short, long) if wide else (long, short)


def scaled_size(height: int, width: int, short_edge: int, long_edge: int) -> tuple[int, int]:
    """Return the height and the width of a scaled image, rounded as in the reference, but never above `long_edge`."""
    low, high = min(height, width), max(height, width)
    short = short_edge
    if short * high > long_edge * low:
        short = max(1, round(long_edge * low / high))
    long = min(short * high // low, long_edge)
    return (short, long) if height == low else (long, short)


@dataclass(frozen=True)
class EvalTransform(Transform):
    """Whole images, scaled. The targets are the size int64 [2] (height, width) and the image's index, int64 []."""

    short_edge: int
    long_edge: int

    def sample(self, target: CocoImage, height: int, width: int, generator: np.random.Generator) -> Crop:
        """Return the whole image; nothing is drawn."""
        return Crop((0, 0, height, width), False, (self._scaled_size(height, width), np.array(target.index)))

    def cpu(self, pixels: Tensor, crop: Crop) -> Tensor:
        """Scale as Pillow does (bilinear, antialiased), flip, and put the image at the top left of its canvas."""
        height, width = crop.targets[0].tolist()
        image = pixels.permute(2, 0, 1)[None]
        scaled = F.interpolate(image, (height, width), mode="bilinear", antialias=True, align_corners=False)
        scaled = scaled[0].permute(1, 2, 0)
        shape = canvas_size(self.short_edge, self.long_edge, crop.box[3] > crop.box[2])
        canvas = torch.tensor(PAD_COLOR, dtype=torch.uint8).repeat(*shape, 1)
        canvas[:height, :width] = scaled.flip(1) if crop.flipped else scaled
        return canvas

    def gpu(self, images: GpuImages, batch: EncodedBatch) -> Tensor:
        """Scale and flip a batch, which holds images of one canvas."""
        height, width = batch.sizes[0].tolist()
        shape = canvas_size(self.short_edge, self.long_edge, width > height)
        crops = (batch.sizes, batch.boxes, batch.flipped, batch.targets[0])
        return image_kernels.crop_and_resize(images.addresses, *crops, shape, PAD_COLOR, images.device)

    def _scaled_size(self, height: int, width: int) -> NDArray[np.int64]:
        return np.array(scaled_size(height, width, self.short_edge, self.long_edge))


@dataclass(frozen=True)
class TrainTransform(EvalTransform):
    """Whole images, scaled, and flipped with probability 0.5.

    The targets: size int64 [2]; boxes float32 [max_boxes, 4] in the scaled image's pixels, right and bottom inclusive,
    and labels int64 [max_boxes] from 1, padded with 0; the outlines' edges float32 [E, 4], which of them end a polygon
    bool [E], and the number of edges of each object int64 [max_boxes].
    """

    max_boxes: int
    max_edges: int
    """The largest number of edges of an image."""

    def sample(self, target: CocoImage, height: int, width: int, generator: np.random.Generator) -> Crop:
        """Draw the flip."""
        size = self._scaled_size(height, width)
        flipped = bool(generator.random() < 0.5)
        scale = np.tile(size[::-1] / (width, height), 2)
        boxes, labels = np.zeros((self.max_boxes, 4), np.float32), np.zeros(self.max_boxes, np.int64)
        box_labels = target.labels()
        boxes[: len(box_labels)] = _scaled_boxes(target, size, scale, flipped)
        labels[: len(box_labels)] = box_labels
        edges, last, counts = self._outlines(target)
        edges *= scale.astype(np.float32)
        if flipped:
            edges[:, ::2] = int(size[1]) - edges[:, ::2] - 1  # as the reference, a pixel left of the flipped pixels
        return Crop((0, 0, height, width), flipped, (size, boxes, labels, edges, last, counts))

    def collate(self, targets: Sequence[Arrays]) -> tuple[Tensor, ...]:
        """Return sizes, boxes and labels [N, ...], and the three tensors of `Outlines`, padded to one shape."""
        stacked = stack_arrays([each[:3] for each in targets])
        size = len(targets) * self.max_edges
        edges, last = np.zeros((size, 4), np.float32), np.zeros(size, np.bool_)
        np.concatenate([each[3] for each in targets], out=edges[: sum(len(each[3]) for each in targets)])
        np.concatenate([each[4] for each in targets], out=last[: sum(len(each[4]) for each in targets)])
        begin = np.concatenate([[0], np.cumsum(np.concatenate([each[5] for each in targets]))])
        return *stacked, torch.from_numpy(edges), torch.from_numpy(last), torch.from_numpy(begin)

    def _outlines(self, target: CocoImage) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.int64]]:
        """Return an image's unscaled edges, which of them end a polygon, and the edges of each object [max_boxes]."""
        dataset, counts = target.dataset, np.zeros(self.max_boxes, np.int64)
        outlines = dataset.edges(target.index)
        counts[: len(outlines)] = [len(edges) for edges, _ in outlines]
        edges, last = (np.concatenate(part) for part in zip(*outlines, strict=True))
        return edges, last, counts


def _scaled_boxes(
    target: CocoImage, size: NDArray[np.int64], scale: NDArray[np.float64], flipped: bool
) -> NDArray[np.float64]:
    """Return left, top, right and bottom: the reference subtracts 1 from right and bottom, then scales."""
    corner, box_size = np.split(target.pixel_boxes(), 2, axis=1)
    left, top, right, bottom = (np.concatenate([corner, corner + box_size - 1], 1) * scale).T
    if flipped:
        left, right = size[1] - right - 1, size[1] - left - 1
    boxes = np.stack([left, top, right, bottom], 1)
    return boxes.clip(0, np.tile(size[::-1], 2) - 1)
