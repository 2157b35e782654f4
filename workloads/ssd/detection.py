"""From scores to boxes: the best of each class that overlap no better one by more than a half (mlperf.md 12.2).

Shapes: N images, P priors, C classes, D detections of an image.
"""

from torch import Tensor
from torchvision.ops import batched_nms

from timetrial.workloads.ssd import priors

_LEAST = 0.05  # score
_CANDIDATES, _MOST = 200, 200  # of a class, of an image
_OVERLAP = 0.5


def detect(locations: Tensor, scores: Tensor, anchors: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each image the corner boxes [D, 4] in fractions, scores [D], falling, and labels [D] from 1."""
    boxes = priors.corners(priors.decode(locations.to(anchors.dtype), anchors))
    chances = scores.to(anchors.dtype).softmax(2)[..., 1:].transpose(1, 2)  # [N, C - 1, P]
    best, places = chances.topk(min(_CANDIDATES, chances.shape[2]), dim=2)
    found = []
    for image in range(len(boxes)):
        kept = (best[image] > _LEAST).nonzero()
        label, place = kept[:, 0] + 1, places[image][kept[:, 0], kept[:, 1]]
        score, box = best[image][kept[:, 0], kept[:, 1]], boxes[image][place]
        order = batched_nms(box, score, label, _OVERLAP)[:_MOST]
        found.append((box[order], score[order], label[order]))
    return found
