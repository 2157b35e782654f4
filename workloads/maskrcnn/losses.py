"""The losses of Mask R-CNN's region proposal network, box head and mask head.

Each is a scalar of float32. Shapes: N images, M boxes per image, A anchors, R regions, K samples per image, C classes
with the background first.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import boxes as box_ops
from . import proposals
from .proposals import Samples

RPN_WEIGHTS: box_ops.DeltaWeights = (1.0, 1.0)
BOX_WEIGHTS: box_ops.DeltaWeights = (10.0, 5.0)


def rpn_loss(
    objectness_logits: Tensor,
    box_deltas: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    valid: Tensor,
    image_sizes: Tensor,
    samples_per_image: int,
) -> Tensor:
    """Return the loss of objectness and box deltas of sampled anchors, divided by their number.

    `objectness_logits` are [N, A], `box_deltas` [N, A, 4], `anchors` [A, 4], `boxes` [N, M, 4], `valid` bool [N, M] and
    `image_sizes` [N, 2].
    """
    with torch.no_grad():
        matches = proposals.match_anchors(anchors, boxes, valid, image_sizes)
        samples = proposals.sample(matches, samples_per_image, 0.5)
        box_index = matches.gather(1, samples.indices).clamp(min=0)
        matched_boxes = boxes.gather(1, box_index[..., None].expand(-1, -1, 4))
        target_deltas = box_ops.encode(matched_boxes, anchors[samples.indices], RPN_WEIGHTS)
        target_deltas = target_deltas.masked_fill(~samples.positive[..., None], 0.0)
    return sampled_rpn_loss(objectness_logits, box_deltas, target_deltas, samples)


def sampled_rpn_loss(objectness_logits: Tensor, box_deltas: Tensor, target_deltas: Tensor, samples: Samples) -> Tensor:
    """Return binary cross entropy plus smooth L1 (beta 1/9) of the samples, divided by their number in the batch."""
    count = samples.valid.sum().clamp(min=1)
    logits = objectness_logits.gather(1, samples.indices).float()
    cross_entropy = F.binary_cross_entropy_with_logits(logits, samples.positive.float(), reduction="none")
    deltas = box_deltas.gather(1, samples.indices[..., None].expand(-1, -1, 4)).float()
    smooth_l1 = F.smooth_l1_loss(deltas, target_deltas.float(), reduction="none", beta=1 / 9).sum(2)
    return ((cross_entropy * samples.valid).sum() + (smooth_l1 * samples.positive).sum()) / count


def box_loss(
    class_logits: Tensor, box_deltas: Tensor, regions: Tensor, target_boxes: Tensor, labels: Tensor, samples: Samples
) -> Tensor:
    """Return cross entropy plus smooth L1 of the true class's deltas, divided by the number of samples.

    `class_logits` are [R, C], `box_deltas` [R, C, 4]; the rest has the shape [N, K, ...] with N * K = R.
    """
    valid, positive, label = samples.valid.flatten(), samples.positive.flatten(), labels.flatten()
    cross_entropy = F.cross_entropy(class_logits.float(), label, reduction="none")
    label_deltas = box_deltas[torch.arange(len(label), device=label.device), label].float()
    target_deltas = box_ops.encode(target_boxes.flatten(0, 1), regions.flatten(0, 1), BOX_WEIGHTS)
    target_deltas = target_deltas.masked_fill(~positive[:, None], 0.0)
    smooth_l1 = F.smooth_l1_loss(label_deltas, target_deltas.float(), reduction="none").sum(1)
    return ((cross_entropy * valid).sum() + (smooth_l1 * positive).sum()) / valid.sum().clamp(min=1)


def mask_loss(logits: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Return the mean binary cross entropy of logits [R, 28, 28] over pixels of positive regions [R]; 0 without any."""
    cross_entropy = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean((1, 2))
    return (cross_entropy * positive).sum() / positive.sum().clamp(min=1)
