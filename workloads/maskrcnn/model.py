"""Mask R-CNN with ResNet-50 and a feature pyramid as MLPerf defines it (mlperf.md 12.3).

A training step has fixed shapes: what is drawn too few of is filled up and counts nothing, so that nothing waits for
the device. Shapes: N images, M boxes of an image, A anchors, R regions, C classes with the background first, L levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from ..common.nn.packing import uploaded
from . import boxes as geometry
from . import kernels, masks, regions
from .blocks import Bottleneck, norm
from .masks import Outlines

MEANS = (122.7717, 115.9465, 102.9801)  # RGB, of pixels from 0 to 255; the reference's backbone knows no deviation
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # channels between, blocks; for a trunk of 64
_RPN: geometry.Weights = (1.0, 1.0)
BOX_WEIGHTS: geometry.Weights = (10.0, 5.0)


@dataclass
class Draws:
    """How many of an image are proposed and drawn in training, and proposed when it is judged: MLPerf's numbers."""

    anchors: int = 256
    of_level: int = 2000
    proposals: int = 1000
    regions: int = 512
    positive: float = 0.25
    judged_of_level: int = 1000
    eval_proposals: int = 1000

    def __post_init__(self) -> None:
        counts = (self.anchors, self.of_level, self.proposals, self.judged_of_level, self.eval_proposals)
        if min(counts) < 1 or not 0 < self.positive <= 1 or self.regions * self.positive < 1:
            raise ValueError("draws must be 1 or more each, and positive a share of regions that is 1 or more of them.")


class Backbone(nn.Module):
    """ResNet-50 and its pyramid.

    With `pretrained` weights to come, norms, stem and first stage are frozen; else all of it is trained.
    """

    mean: Tensor

    def __init__(self, width: int, pyramid: int, pretrained: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), norm(width, pretrained)
        channels, stages, laterals = width, [], []
        for place, (between, blocks) in enumerate(_STAGES):
            inner = between * width // 64
            stage = [Bottleneck(channels, inner, 2 if place else 1, pretrained)]
            channels = 4 * inner
            stage += [Bottleneck(channels, inner, 1, pretrained) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(*stage))
            laterals.append(nn.Conv2d(channels, pyramid, 1))
        self.stages, self.laterals = nn.ModuleList(stages), nn.ModuleList(laterals)
        outputs = [nn.Conv2d(pyramid, pyramid, 3, padding=1) for _ in _STAGES]
        self.outputs = nn.ModuleList(outputs)
        for convolution in (*laterals, *outputs):
            nn.init.kaiming_uniform_(convolution.weight, a=1)
            _zero(convolution.bias)
        for frozen in (self.conv1, self.stages[0]) if pretrained else ():
            frozen.requires_grad_(False)
        self.register_buffer("mean", torch.tensor(MEANS).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """P2 to P6 of pixels uint8 [N, 3, H, W], whose edges are multiples of 32."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images.float() - self.mean))), 3, 2, 1)
        seen = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        inner = [lateral(x) for lateral, x in zip(self.laterals, seen, strict=True)]
        for place in (2, 1, 0):
            inner[place] = inner[place] + F.interpolate(inner[place + 1], scale_factor=2.0, mode="nearest")
        found = [output(x) for output, x in zip(self.outputs, inner, strict=True)]
        return [*found, found[-1][:, :, ::2, ::2]]


class MaskRCNN(nn.Module):
    """Called with a batch, the sum of its five losses times its images."""

    def __init__(
        self,
        classes: int,
        draws: Draws,
        *,
        width: int = 64,
        pyramid: int = 256,
        hidden: int = 1024,
        pretrained: bool = True,
    ) -> None:
        super().__init__()
        self.classes, self.draws = classes, draws
        self.backbone = Backbone(width, pyramid, pretrained)
        self.look = nn.Conv2d(pyramid, pyramid, 3, padding=1)
        self.objectness, self.moves = nn.Conv2d(pyramid, 3, 1), nn.Conv2d(pyramid, 12, 1)
        self.fc1, self.fc2 = nn.Linear(pyramid * 49, hidden), nn.Linear(hidden, hidden)
        self.classify, self.place = nn.Linear(hidden, classes), nn.Linear(hidden, 4 * classes)
        self.mask_convs = nn.ModuleList(nn.Conv2d(pyramid, pyramid, 3, padding=1) for _ in range(4))
        self.enlarge, self.mask = nn.ConvTranspose2d(pyramid, pyramid, 2, 2), nn.Conv2d(pyramid, classes, 1)
        self._initialise(pretrained)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, sizes: Tensor, boxes: Tensor, labels: Tensor, outlines: Outlines) -> Tensor:
        """Pixels uint8 [N, 3, H, W], sizes [N, 2] before padding, boxes [N, M, 4], labels [N, M] or 0.

        `outlines` are those of the N * M objects.
        """
        maps = self.backbone(images)
        chances, moves = self.propose(maps)
        anchors = geometry.anchors(tuple((x.shape[2], x.shape[3]) for x in maps), images.device)
        exists = labels > 0
        total = rpn_loss(
            torch.cat(chances, 1), torch.cat(moves, 1), torch.cat(anchors), boxes, exists, sizes, self.draws
        )
        with torch.no_grad():
            drawn, found, matches = self._regions(chances, moves, anchors, boxes, exists, sizes)
            label = torch.where(drawn.positive, labels.gather(1, matches.clamp(min=0)), 0)
            target = boxes.gather(1, matches.clamp(min=0)[..., None].expand(-1, -1, 4))
        scores, differences = self.judge(self.pooled(maps, found, 7))
        total = total + box_loss(scores, differences, found, target, label, drawn)
        most = int(self.draws.regions * self.draws.positive)
        first = found[:, :most]
        with torch.no_grad():
            number = (
                matches[:, :most].clamp(min=0) + torch.arange(len(boxes), device=boxes.device)[:, None] * boxes.shape[1]
            )
            wanted = masks.targets(outlines, number.flatten(), first.reshape(-1, 4))
        logits = self.outline(self.pooled(maps, first, 14), label[:, :most].flatten())
        return (total + mask_loss(logits, wanted, drawn.positive[:, :most].flatten())) * len(images)

    def compile(self, *how: Any, **options: Any) -> None:
        """Compiles the backbone, where the passes over large maps are; what follows is kernels already."""
        self.backbone.compile(*how, **options)

    def propose(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each level the anchors' objectness [N, A_l] and differences [N, A_l, 4]: rows, columns, ratios."""
        chances, moves = [], []
        for x in maps:
            seen = F.relu(self.look(x))
            chances.append(self.objectness(seen).permute(0, 2, 3, 1).flatten(1))
            moves.append(self.moves(seen).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)))
        return chances, moves

    def judge(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [R, C] and differences [R, C, 4] of features [R, pyramid, 7, 7]."""
        x = F.relu(self.fc2(F.relu(self.fc1(pooled.flatten(1)))))
        return self.classify(x), self.place(x).unflatten(1, (-1, 4))

    def outline(self, pooled: Tensor, labels: Tensor) -> Tensor:
        """Logits [R, 28, 28] of the mask of each region's own class, of features [R, pyramid, 14, 14]."""
        x = pooled
        for conv in self.mask_convs:
            x = F.relu(conv(x))
        x = F.relu(self.enlarge(x))
        own = self.mask.weight.flatten(1)[labels].to(x.dtype)  # the other classes' logits are not asked for
        assert self.mask.bias is not None
        return torch.einsum("rchw,rc->rhw", x, own) + self.mask.bias[labels].to(x.dtype)[:, None, None]

    def pooled(self, maps: Sequence[Tensor], found: Tensor, size: int) -> Tensor:
        """Features [N * K, pyramid, size, size] of regions [N, K, 4], each from its own level."""
        image = torch.arange(len(found), device=found.device).repeat_interleave(found.shape[1])
        flat = torch.cat([image[:, None].to(found.dtype), found.flatten(0, 1)], 1)
        levels = level(flat[:, 1:])
        scales = np.array([1 / stride for stride in geometry.STRIDES[:4]], dtype=np.float32)
        if kernels.available(flat):
            return kernels.align(maps[:4], uploaded(scales, flat.device), flat, levels.int(), size)
        pooled = maps[0].new_zeros(len(flat), maps[0].shape[1], size, size)
        for number, (x, scale) in enumerate(zip(maps[:4], scales.tolist(), strict=True)):
            some = (levels == number).nonzero()[:, 0]
            pooled = pooled.index_copy(0, some, roi_align(x, flat[some].to(x.dtype), size, scale, 2, aligned=False))
        return pooled

    def _regions(
        self,
        chances: Sequence[Tensor],
        moves: Sequence[Tensor],
        anchors: Sequence[Tensor],
        boxes: Tensor,
        exists: Tensor,
        sizes: Tensor,
    ) -> tuple[regions.Drawn, Tensor, Tensor]:
        """What is drawn of the proposals and the boxes themselves: their places [N, K, 4] and boxes' numbers [N, K]."""
        chosen = self.draws
        best = chosen.proposals * len(boxes)
        proposed, real, _ = regions.propose(
            chances, moves, anchors, sizes, of_level=chosen.of_level, best=best, over_batch=True
        )
        candidates, real = torch.cat([proposed, boxes], 1), torch.cat([real, exists], 1)
        matches = regions.match_regions(candidates, real, boxes, exists)
        drawn = regions.draw(matches, chosen.regions, chosen.positive)
        found = candidates.gather(1, drawn.indices[..., None].expand(-1, -1, 4))
        return drawn, found, matches.gather(1, drawn.indices)

    def _initialise(self, pretrained: bool) -> None:
        """As the reference: normal in the proposals' and the box's last layers, Kaiming elsewhere; biases at zero.

        From nothing the last layer of masks is normal too.
        """
        for layer in (self.look, self.objectness, self.moves):
            nn.init.normal_(layer.weight, std=0.01)
        for dense in (self.fc1, self.fc2):
            nn.init.kaiming_uniform_(dense.weight, a=1)
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.normal_(self.place.weight, std=0.001)
        outlining = [*self.mask_convs, self.enlarge, self.mask]
        for module in outlining:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        heads = (self.look, self.objectness, self.moves, self.fc1, self.fc2, self.classify, self.place, *outlining)
        for module in heads:
            _zero(module.bias)
        if not pretrained:
            # Spread over the classes, Kaiming's is far too much of few of them: that throws a new trunk off its course.
            nn.init.normal_(self.mask.weight, std=0.01)


def _zero(bias: object) -> None:
    assert isinstance(bias, Tensor)
    nn.init.zeros_(bias)


def level(found: Tensor) -> Tensor:
    """int64 [...]: from which of P2 to P5, counted from 0, regions [..., 4] are taken (Lin et al. 2017, equation 1)."""
    edge = geometry.area(found).clamp(min=0).sqrt()
    # Once training diverges no comparison holds; a level there must be all the same, the kernels take its address.
    return (4 + (edge / 224 + 1e-6).log2()).floor().clamp(2, 5).nan_to_num(2.0).long() - 2


def rpn_loss(
    chances: Tensor, moves: Tensor, anchors: Tensor, boxes: Tensor, exists: Tensor, sizes: Tensor, draws: Draws
) -> Tensor:
    """Objectness and differences of anchors that are drawn, over their number."""
    with torch.no_grad():
        matches = regions.match_anchors(anchors, boxes, exists, sizes)
        drawn = regions.draw(matches, draws.anchors, 0.5)
        number = matches.gather(1, drawn.indices).clamp(min=0)
        target = geometry.encode(boxes.gather(1, number[..., None].expand(-1, -1, 4)), anchors[drawn.indices], _RPN)
        target = target.masked_fill(~drawn.positive[..., None], 0.0)
    return drawn_loss(chances, moves, target, drawn)


def drawn_loss(chances: Tensor, moves: Tensor, target: Tensor, drawn: regions.Drawn) -> Tensor:
    """Binary cross entropy [N, A] and smooth L1 (beta 1/9) of what is drawn, over its number in the batch."""
    count = drawn.counts.sum().clamp(min=1)
    own = chances.gather(1, drawn.indices).float()
    chance = F.binary_cross_entropy_with_logits(own, drawn.positive.float(), reduction="none")
    near = moves.gather(1, drawn.indices[..., None].expand(-1, -1, 4)).float()
    distance = F.smooth_l1_loss(near, target.float(), reduction="none", beta=1 / 9).sum(2)
    return ((chance * drawn.counts).sum() + (distance * drawn.positive).sum()) / count


def box_loss(
    scores: Tensor, differences: Tensor, found: Tensor, target: Tensor, labels: Tensor, drawn: regions.Drawn
) -> Tensor:
    """Cross entropy of scores [R, C], and smooth L1 of the true class's differences [R, C, 4], over the drawn."""
    counts, positive, label = drawn.counts.flatten(), drawn.positive.flatten(), labels.flatten()
    entropy = F.cross_entropy(scores.float(), label, reduction="none")
    own = differences[torch.arange(len(label), device=label.device), label].float()
    wanted = geometry.encode(target.flatten(0, 1), found.flatten(0, 1), BOX_WEIGHTS).masked_fill(
        ~positive[:, None], 0.0
    )
    distance = F.smooth_l1_loss(own, wanted.float(), reduction="none").sum(1)
    return ((entropy * counts).sum() + (distance * positive).sum()) / counts.sum().clamp(min=1)


def mask_loss(logits: Tensor, wanted: Tensor, positive: Tensor) -> Tensor:
    """Binary cross entropy of logits [R, 28, 28], the mean over the pixels of positive regions [R]; 0 without any."""
    entropy = F.binary_cross_entropy_with_logits(logits.float(), wanted, reduction="none").mean((1, 2))
    return (entropy * positive).sum() / positive.sum().clamp(min=1)
