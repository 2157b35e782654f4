"""Which anchors and regions count as what, how they are drawn, and which are proposed: in shapes that no data change.

Nothing here waits for the device. Shapes: N images, A anchors, M boxes of an image (`exists` bool [N, M] says which),
K drawn, L levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.detection.nms import suppress
from . import boxes as geometry

NEGATIVE, IGNORED = -1, -2
_NOWHERE = -1e6


class Drawn(NamedTuple):
    """Indices [N, K] of what was drawn; `positive` and `counts` bool [N, K]: what of it is positive, what is there."""

    indices: Tensor
    positive: Tensor
    counts: Tensor


def match_anchors(anchors: Tensor, boxes: Tensor, exists: Tensor, sizes: Tensor) -> Tensor:
    """int64 [N, A]: the number of each anchor's box, or NEGATIVE, or IGNORED (mlperf.md 12.3).

    0.7 or more is a match, below 0.3 there is none, and the anchors that a box overlaps most, all that tie, match the
    box that they themselves overlap most. Anchors [A, 4] that leave the image, of `sizes` [N, 2] (height, width), are
    ignored. Boxes are [N, M, 4].
    """
    shared = geometry.overlaps(anchors, boxes).masked_fill(~exists[:, None], -1.0)
    best, chosen = shared.max(2)
    most = shared.amax(1, keepdim=True)
    favourite = ((shared == most) & (most > 0)).any(2)
    found = torch.where(best < 0.3, NEGATIVE, torch.where(best >= 0.7, chosen, IGNORED))
    found = torch.where(favourite, chosen, found)
    height, width = sizes[:, :1], sizes[:, 1:]
    inside = (anchors[:, 0] >= 0) & (anchors[:, 1] >= 0) & (anchors[:, 2] < width) & (anchors[:, 3] < height)
    return torch.where(inside, found, IGNORED)


def match_regions(regions: Tensor, real: Tensor, boxes: Tensor, exists: Tensor) -> Tensor:
    """int64 [N, R]: the number of each region's box if they overlap by 0.5 or more, else NEGATIVE; IGNORED if not real.

    `regions` [N, R, 4], of which `real` [N, R] are there.
    """
    best, chosen = geometry.overlaps(regions, boxes).masked_fill(~exists[:, None], -1.0).max(2)
    return torch.where(real, torch.where(best >= 0.5, chosen, NEGATIVE), IGNORED)


def draw(matches: Tensor, most: int, share: float) -> Drawn:
    """At most `most` of each image at random, of which the positives are at most a `share`, before the negatives."""
    key = torch.rand(matches.shape, device=matches.device)
    positives = int(most * share)
    few, where = key.masked_fill(matches < 0, -1.0).topk(min(positives, matches.shape[1]))
    rest, others = key.masked_fill(matches != NEGATIVE, -1.0).topk(min(most, matches.shape[1]))
    taken = (few >= 0).sum(1, keepdim=True)
    free = torch.arange(rest.shape[1], device=matches.device) < most - taken
    counts = torch.cat([few >= 0, (rest >= 0) & free], 1)
    indices = torch.cat([where, others], 1)
    # What counts comes first; of the two lists' places together `most` are enough.
    order = (~counts).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
    counts, indices = counts.gather(1, order), indices.gather(1, order)
    return Drawn(indices, counts & (matches.gather(1, indices) >= 0), counts)


def propose(
    objectness: Sequence[Tensor],
    differences: Sequence[Tensor],
    anchors: Sequence[Tensor],
    sizes: Tensor,
    *,
    of_level: int,
    best: int,
    over_batch: bool,
    overlap: float = 0.7,
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes [N, P, 4], which of them are real [N, P], and their scores, falling: P is at most `best`.

    Of each level the `of_level` best anchors, moved by their differences, cut to the image, of which none overlaps a
    better one by more than `overlap`; then the best over the batch, or of each image. Levels: objectness [N, A_l],
    differences [N, A_l, 4], anchors [A_l, 4].
    """
    most = min(of_level, max(chances.shape[1] for chances in objectness))
    found, scores = [], []
    for chances, moves, places in zip(objectness, differences, anchors, strict=True):
        score, index = chances.float().topk(min(of_level, chances.shape[1]))
        chosen = moves.float().gather(1, index[..., None].expand(-1, -1, 4))
        moved = geometry.clip(geometry.decode(chosen, places[index], (1.0, 1.0)), sizes)
        missing = most - score.shape[1]  # all levels are made equal, to be looked through at once
        found.append(F.pad(moved, (0, 0, 0, missing)))
        scores.append(F.pad(score, (0, missing), value=_NOWHERE))
    levels, together = torch.stack(found, 1), torch.cat(found, 1)
    counts = (torch.stack(scores, 1) > _NOWHERE).sum(2).flatten()
    kept = suppress(levels.flatten(0, 1), overlap, counts, edge=1.0)
    chances = torch.cat(scores, 1).masked_fill(~kept.view(len(together), -1), _NOWHERE)
    if over_batch:
        least = chances.flatten().topk(min(best, chances.numel())).values[-1]
        chances = chances.masked_fill(chances < least, _NOWHERE)
    score, index = chances.topk(min(best, chances.shape[1]))
    return together.gather(1, index[..., None].expand(-1, -1, 4)), score > _NOWHERE, score
