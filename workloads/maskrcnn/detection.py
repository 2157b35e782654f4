"""Mask R-CNN's inference in shapes that do not depend on the data (docs/mlperf_rules.md, "Mask R-CNN").

Shapes: N images, R proposals per image, C classes with the background first, D detections per image: at most 100.
"""

from typing import NamedTuple

from torch import Tensor

from ..common.detection.nms import batched_nms
from . import boxes as box_ops
from . import proposals
from .losses import BOX_WEIGHTS
from .model import MaskRCNN

_SCORE_THRESHOLD, _NMS_THRESHOLD = 0.05, 0.5
_DETECTIONS_PER_IMAGE = 100


class DetectionBatch(NamedTuple):
    """Boxes [N, D, 4] in pixels of the resized images, falling scores [N, D] and labels [N, D], which start at 1.

    `valid` bool [N, D] says which detections exist; the others have score 0.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    valid: Tensor


def detect(model: MaskRCNN, pixels: Tensor, image_sizes: Tensor) -> tuple[DetectionBatch, Tensor]:
    """Return the detections and their mask probabilities float32 [N, D, 28, 28], each over its box.

    `pixels` are uint8 [N, 3, H, W]; `image_sizes` [N, 2] (height, width) are those of the images without padding.
    """
    feature_maps = model.backbone(pixels)
    anchors = box_ops.anchors(tuple((x.shape[2], x.shape[3]) for x in feature_maps), pixels.device)
    boxes, valid, _ = proposals.select_proposals(
        *model.rpn_head(feature_maps), anchors, image_sizes,
        per_level=model.sampling.eval_proposals_per_level, total=model.sampling.eval_proposals, over_batch=False,
    )  # fmt: skip
    pooled = model.pool_regions(feature_maps, boxes, 7)
    class_logits, box_deltas = (x.unflatten(0, valid.shape) for x in model.box_head(pooled))
    detections = select_detections(class_logits, box_deltas, boxes, valid, image_sizes)
    pooled = model.pool_regions(feature_maps, detections.boxes, 14)
    mask_logits = model.mask_head(pooled, detections.labels.flatten())
    return detections, mask_logits.float().sigmoid().unflatten(0, detections.valid.shape)


def select_detections(
    class_logits: Tensor, box_deltas: Tensor, proposal_boxes: Tensor, valid: Tensor, image_sizes: Tensor
) -> DetectionBatch:
    """Return the best detections after non-maximum suppression by class at an IoU of 0.5.

    `class_logits` are [N, R, C]. `box_deltas` [N, R, C, 4] are those of each class from `proposal_boxes` [N, R, 4], of
    which `valid` [N, R] exist.
    """
    scores = class_logits.float().softmax(2)[..., 1:].transpose(1, 2)
    scores = scores.masked_fill(~(valid[:, None] & (scores > _SCORE_THRESHOLD)), 0.0)
    # Each class of an image is a group with room for all proposals, so that no candidate is left out.
    scores, order = scores.sort(2, descending=True)
    boxes = box_ops.decode(box_deltas[:, :, 1:].float(), proposal_boxes[:, :, None].float(), BOX_WEIGHTS)
    boxes = box_ops.clip(boxes, image_sizes).transpose(1, 2).gather(2, order[..., None].expand(-1, -1, -1, 4))
    counts = (scores > 0).sum(2).flatten()
    kept = batched_nms(boxes.flatten(0, 1), _NMS_THRESHOLD, counts, pixel_offset=1.0)
    scores = scores.masked_fill(~kept.view(scores.shape), 0.0).flatten(1)
    scores, index = scores.topk(min(_DETECTIONS_PER_IMAGE, scores.shape[1]))
    boxes = boxes.flatten(1, 2).gather(1, index[..., None].expand(-1, -1, 4))
    return DetectionBatch(boxes, scores, index // valid.shape[1] + 1, scores > 0)
