"""Matching and sampling of anchors and proposals, and selection of proposals, in shapes that do not depend on the data.

Nothing here waits for the device. Shapes: N images, A anchors, R proposals, M boxes per image (`valid` bool [N, M] says
which exist), K samples, L levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.detection.nms import batched_nms
from . import boxes as box_ops
from .matching import IGNORED, NEGATIVE, match

_RPN_FOREGROUND_IOU, _RPN_BACKGROUND_IOU, _BOX_FOREGROUND_IOU = 0.7, 0.3, 0.5
_NO_SCORE = -1e6


class Samples(NamedTuple):
    """Indices [N, K] of the samples; `positive` and `valid` bool [N, K] say which are positive and which exist."""

    indices: Tensor
    positive: Tensor
    valid: Tensor


def match_anchors(anchors: Tensor, boxes: Tensor, valid: Tensor, image_sizes: Tensor) -> Tensor:
    """Return int64 [N, A]: the index of each anchor's box, NEGATIVE or IGNORED (docs/mlperf_rules.md, "Mask R-CNN").

    An anchor [A, 4] matches the box [N, M, 4] of its largest IoU if that is 0.7 or more, and is negative below 0.3.
    All anchors that tie for the largest IoU of a box match their own best box as well. Anchors that leave the image of
    `image_sizes` [N, 2] (height, width) are ignored.
    """
    matches = match(
        anchors[None], boxes, valid,
        foreground_iou=_RPN_FOREGROUND_IOU, background_iou=_RPN_BACKGROUND_IOU, force_best=True,
    )  # fmt: skip
    height, width = image_sizes[:, :1], image_sizes[:, 1:]
    inside = (anchors[:, 0] >= 0) & (anchors[:, 1] >= 0) & (anchors[:, 2] < width) & (anchors[:, 3] < height)
    return torch.where(inside, matches, IGNORED)


def match_proposals(proposals: Tensor, proposal_valid: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
    """Return int64 [N, R]: the index of each proposal's box if their IoU is 0.5 or more, else NEGATIVE.

    Of `proposals` [N, R, 4] those that do not exist according to `proposal_valid` [N, R] are IGNORED.
    """
    iou = _BOX_FOREGROUND_IOU
    matches = match(proposals, boxes, valid, foreground_iou=iou, background_iou=iou, force_best=False)
    return torch.where(proposal_valid, matches, IGNORED)


def sample(matches: Tensor, count: int, positive_fraction: float) -> Samples:
    """Draw at most `count` of each image at random, of which at most `positive_fraction` are positive, positives first.

    `matches` [N, A] are those of `match_anchors` or `match_proposals`.
    """
    keys = torch.rand(matches.shape, device=matches.device)
    max_positives = int(count * positive_fraction)
    positive_keys, positives = keys.masked_fill(matches < 0, -1.0).topk(min(max_positives, matches.shape[1]))
    negative_keys, negatives = keys.masked_fill(matches != NEGATIVE, -1.0).topk(min(count, matches.shape[1]))
    num_positives = (positive_keys >= 0).sum(1, keepdim=True)
    has_room = torch.arange(negative_keys.shape[1], device=matches.device) < count - num_positives
    valid = torch.cat([positive_keys >= 0, (negative_keys >= 0) & has_room], 1)
    indices = torch.cat([positives, negatives], 1)
    # Move the valid ones to the front: at most `count` of the two lists are valid.
    order = (~valid).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    valid, indices = valid.gather(1, order), indices.gather(1, order)
    return Samples(indices, valid & (matches.gather(1, indices) >= 0), valid)


def select_proposals(
    objectness_logits: Sequence[Tensor],
    box_deltas: Sequence[Tensor],
    anchors: Sequence[Tensor],
    image_sizes: Tensor,
    *,
    per_level: int,
    total: int,
    over_batch: bool,
    nms_threshold: float = 0.7,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes [N, P, 4], which of them exist [N, P], and their falling logits; P is at most `total`.

    Of each level the `per_level` best anchors are decoded, clipped to the image and reduced by non-maximum suppression.
    Then the best `total` of the whole batch, or of each image, are kept. By level: `objectness_logits` [N, A_l],
    `box_deltas` [N, A_l, 4], `anchors` [A_l, 4].
    """
    padded_size = min(per_level, max(logits.shape[1] for logits in objectness_logits))
    level_boxes, level_logits = [], []
    for logits, deltas, level_anchors in zip(objectness_logits, box_deltas, anchors, strict=True):
        top_logits, index = logits.float().topk(min(per_level, logits.shape[1]))
        top_deltas = deltas.float().gather(1, index[..., None].expand(-1, -1, 4))
        boxes = box_ops.clip(box_ops.decode(top_deltas, level_anchors[index], (1.0, 1.0)), image_sizes)
        padding = padded_size - top_logits.shape[1]  # equal sizes allow one suppression for all levels
        level_boxes.append(F.pad(boxes, (0, 0, 0, padding)))
        level_logits.append(F.pad(top_logits, (0, padding), value=_NO_SCORE))
    stacked_boxes, boxes = torch.stack(level_boxes, 1), torch.cat(level_boxes, 1)
    counts = (torch.stack(level_logits, 1) > _NO_SCORE).sum(2).flatten()
    kept = batched_nms(stacked_boxes.flatten(0, 1), nms_threshold, counts, pixel_offset=1.0)
    logits = torch.cat(level_logits, 1).masked_fill(~kept.view(len(boxes), -1), _NO_SCORE)
    if over_batch:
        lowest = logits.flatten().topk(min(total, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < lowest, _NO_SCORE)
    top_logits, index = logits.topk(min(total, logits.shape[1]))
    return boxes.gather(1, index[..., None].expand(-1, -1, 4)), top_logits > _NO_SCORE, top_logits
