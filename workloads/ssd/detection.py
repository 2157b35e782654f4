"""From scores to boxes: the best of each class that overlap no better one by more than a half (mlperf.md 12.2).

Shapes: N images, P priors, C classes with the background first, D detections of an image: at most 200.
"""

from typing import NamedTuple

from torch import Tensor

from ..common.detection.nms import suppress
from . import priors

_LEAST = 0.05  # score
_CANDIDATES, _MOST = 200, 200  # of a class, of an image
_OVERLAP = 0.5


class Chosen(NamedTuple):
    """Corner boxes [N, D, 4] in fractions, scores [N, D], falling, and labels [N, D] from 1.

    `exists` bool [N, D] says which there are; the others have the score 0.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    exists: Tensor


def detect(locations: Tensor, scores: Tensor, anchors: Tensor) -> Chosen:
    """What is found by differences [N, P, 4] from the priors [P, 4] and scores [N, P, C]."""
    boxes = priors.corners(priors.decode(locations.to(anchors.dtype), anchors))
    chances = scores.to(anchors.dtype).softmax(2)[..., 1:].transpose(1, 2)
    best, places = chances.topk(min(_CANDIDATES, chances.shape[2]), dim=2)
    index = places.flatten(1)[..., None].expand(-1, -1, 4)
    found = boxes.gather(1, index).unflatten(1, places.shape[1:])  # each class of an image is a group
    kept = suppress(found.flatten(0, 1), _OVERLAP, (best > _LEAST).sum(2).flatten())
    best = best.masked_fill(~kept.view(best.shape), 0.0).flatten(1)
    score, index = best.topk(min(_MOST, best.shape[1]))
    chosen = found.flatten(1, 2).gather(1, index[..., None].expand(-1, -1, 4))
    return Chosen(chosen, score, index // places.shape[2] + 1, score > 0)
