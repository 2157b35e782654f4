"""From a batch of images to what Mask R-CNN finds on them, in shapes that no data change (mlperf.md 12.3).

Shapes: N images, R proposals of an image, C classes with the background first, D detections of an image: at most 100.
"""

from typing import NamedTuple

from torch import Tensor

from ..common.detection.nms import suppress
from . import boxes as geometry
from . import regions
from .model import BOX_WEIGHTS, MaskRCNN

_LEAST, _OVERLAP = 0.05, 0.5  # score, and of boxes of one class
_MOST = 100  # detections of an image, over all classes


class Chosen(NamedTuple):
    """Boxes [N, D, 4] in pixels of the images as given, scores [N, D], falling, and labels [N, D] from 1.

    `exists` bool [N, D] says which there are; the others have the score 0.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    exists: Tensor


def detect(model: MaskRCNN, pixels: Tensor, sizes: Tensor) -> tuple[Chosen, Tensor]:
    """What is found, and the probabilities of its masks float32 [N, D, 28, 28], each over its box.

    Of pixels uint8 [N, 3, H, W], the images' own sizes being `sizes` [N, 2] (height, width).
    """
    maps = model.backbone(pixels)
    anchors = geometry.anchors(tuple((x.shape[2], x.shape[3]) for x in maps), pixels.device)
    of_level, best = model.draws.judged_of_level, model.draws.eval_proposals
    proposed, real, _ = regions.propose(
        *model.propose(maps), anchors, sizes, of_level=of_level, best=best, over_batch=False
    )
    scores, differences = (x.unflatten(0, real.shape) for x in model.judge(model.pooled(maps, proposed, 7)))
    chosen = choose(scores, differences, proposed, real, sizes)
    logits = model.outline(model.pooled(maps, chosen.boxes, 14), chosen.labels.flatten())
    return chosen, logits.float().sigmoid().unflatten(0, chosen.exists.shape)


def choose(scores: Tensor, differences: Tensor, proposed: Tensor, real: Tensor, sizes: Tensor) -> Chosen:
    """The best of scores [N, R, C] whose boxes overlap no better one of their class by more than a half.

    `differences` [N, R, C, 4] are the classes' own to the proposals [N, R, 4], of which `real` [N, R] are there.
    """
    chances = scores.float().softmax(2)[..., 1:].transpose(1, 2)
    chances = chances.masked_fill(~(real[:, None] & (chances > _LEAST)), 0.0)
    # Each class of an image is a group that has room for all proposals, so that no candidate is left out.
    chances, order = chances.sort(2, descending=True)
    places = geometry.decode(differences[:, :, 1:].float(), proposed[:, :, None].float(), BOX_WEIGHTS)
    places = geometry.clip(places, sizes).transpose(1, 2).gather(2, order[..., None].expand(-1, -1, -1, 4))
    kept = suppress(places.flatten(0, 1), _OVERLAP, (chances > 0).sum(2).flatten(), edge=1.0)
    chances = chances.masked_fill(~kept.view(chances.shape), 0.0).flatten(1)
    best, index = chances.topk(min(_MOST, chances.shape[1]))
    found = places.flatten(1, 2).gather(1, index[..., None].expand(-1, -1, 4))
    return Chosen(found, best, index // real.shape[1] + 1, best > 0)
