"""Post-processing of SSD's predictions (docs/mlperf_rules.md, "SSD").

Shapes: N images, P priors, C classes with the background first, D detections per image: at most 200.
"""

from typing import NamedTuple

from torch import Tensor

from ..common.detection.nms import batched_nms
from . import priors

_SCORE_THRESHOLD = 0.05
_CANDIDATES_PER_CLASS, _DETECTIONS_PER_IMAGE = 200, 200
_NMS_THRESHOLD = 0.5


class DetectionBatch(NamedTuple):
    """Corner boxes [N, D, 4] as fractions of the image, falling scores [N, D] and labels [N, D], which start at 1.

    `valid` bool [N, D] says which detections exist; the others have score 0.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    valid: Tensor


def detect(box_deltas: Tensor, class_logits: Tensor, prior_boxes: Tensor) -> DetectionBatch:
    """Return the detections of box deltas [N, P, 4] from the priors [P, 4] and class logits [N, P, C]."""
    boxes = priors.to_corners(priors.decode(box_deltas.to(prior_boxes.dtype), prior_boxes))
    class_scores = class_logits.to(prior_boxes.dtype).softmax(2)[..., 1:].transpose(1, 2)
    scores, prior_index = class_scores.topk(min(_CANDIDATES_PER_CLASS, class_scores.shape[2]), dim=2)
    candidates = boxes.gather(1, prior_index.flatten(1)[..., None].expand(-1, -1, 4)).unflatten(
        1, prior_index.shape[1:]
    )
    # Each class of an image is a group of its own.
    kept = batched_nms(candidates.flatten(0, 1), _NMS_THRESHOLD, (scores > _SCORE_THRESHOLD).sum(2).flatten())
    scores = scores.masked_fill(~kept.view(scores.shape), 0.0).flatten(1)
    scores, index = scores.topk(min(_DETECTIONS_PER_IMAGE, scores.shape[1]))
    boxes = candidates.flatten(1, 2).gather(1, index[..., None].expand(-1, -1, 4))
    return DetectionBatch(boxes, scores, index // prior_index.shape[2] + 1, scores > 0)
