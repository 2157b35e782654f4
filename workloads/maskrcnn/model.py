"""Mask R-CNN with ResNet-50 and a feature pyramid as MLPerf defines it (docs/mlperf_rules.md, "Mask R-CNN").

A training step has fixed shapes: missing samples are padded and masked out, so that nothing waits for the device.
Shapes: N images, M boxes per image, A anchors, R regions, K samples per image, C classes with the background first, L
levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.nn.stem import MaxPool, SpaceToDepthConv
from ..common.nn.triton_support import triton_available
from ..common.vision.torchvision_library import load_library
from . import boxes as box_ops
from . import kernels, losses, masks, proposals
from .blocks import Bottleneck, norm_layer
from .masks import Outlines
from .proposals import Samples

MEAN = (122.7717, 115.9465, 102.9801)  # RGB, of pixels from 0 to 255; the reference does not divide by the std
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # bottleneck channels at width 64, blocks
_ANCHORS_PER_CELL = len(box_ops.ASPECT_RATIOS)


@dataclass
class SamplingSettings:
    """Numbers of anchors and proposals per image; the defaults are MLPerf's."""

    rpn_batch_size_per_image: int = 256
    """Anchors of an image that are sampled for the losses of the region proposal network."""
    proposals_per_level: int = 2000
    """Proposals of a pyramid level that enter the non-maximum suppression in training."""
    proposals: int = 1000
    """Proposals per image of the batch that are kept in training."""
    box_batch_size_per_image: int = 512
    """Proposals of an image that are sampled for the losses of the heads."""
    positive_fraction: float = 0.25
    """Largest fraction of positives among the sampled proposals."""
    eval_proposals_per_level: int = 1000
    """Proposals of a pyramid level that enter the non-maximum suppression in evaluation."""
    eval_proposals: int = 1000
    """Proposals of an image that are kept in evaluation."""

    def __post_init__(self) -> None:
        counts = (
            self.rpn_batch_size_per_image,
            self.proposals_per_level,
            self.proposals,
            self.eval_proposals_per_level,
            self.eval_proposals,
        )
        if min(counts) < 1 or not 0 < self.positive_fraction <= 1 or self.max_positives < 1:
            raise ValueError(
                "sampling numbers must be 1 or more, positive_fraction in (0, 1] and 1 or more of "
                "box_batch_size_per_image."
            )

    @property
    def max_positives(self) -> int:
        """The largest number of positive proposals sampled per image."""
        return int(self.box_batch_size_per_image * self.positive_fraction)


class Backbone(nn.Module):
    """ResNet-50 and its feature pyramid network.

    With `pretrained`, all norms, the stem and the first stage are frozen; else everything is trained.
    """

    mean: Tensor

    def __init__(self, width: int, fpn_channels: int, pretrained: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1, self.max_pool = SpaceToDepthConv(width), norm_layer(width, pretrained), MaxPool()
        channels, stages, lateral_convs = width, [], []
        for index, (base_channels, blocks) in enumerate(_STAGES):
            inner_channels = base_channels * width // 64
            stage = [Bottleneck(channels, inner_channels, 2 if index else 1, pretrained)]
            channels = 4 * inner_channels
            stage += [Bottleneck(channels, inner_channels, 1, pretrained) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(*stage))
            lateral_convs.append(nn.Conv2d(channels, fpn_channels, 1))
        self.stages, self.lateral_convs = nn.ModuleList(stages), nn.ModuleList(lateral_convs)
        output_convs = [nn.Conv2d(fpn_channels, fpn_channels, 3, padding=1) for _ in _STAGES]
        self.output_convs = nn.ModuleList(output_convs)
        for convolution in (*lateral_convs, *output_convs):
            nn.init.kaiming_uniform_(convolution.weight, a=1)
            _zero(convolution.bias)
        for frozen in (self.conv1, self.stages[0]) if pretrained else ():
            frozen.requires_grad_(False)
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return P2 to P6 of pixels uint8 [N, 3, H, W], whose height and width are multiples of 32."""
        x = self.max_pool(F.relu(self.bn1(self.conv1(images, self.mean))))
        stage_outputs = []
        for stage in self.stages:
            x = stage(x)
            stage_outputs.append(x)
        inner = [lateral(x) for lateral, x in zip(self.lateral_convs, stage_outputs, strict=True)]
        for level in (2, 1, 0):
            inner[level] = inner[level] + _upsampled(inner[level + 1])
        outputs = [output(x) for output, x in zip(self.output_convs, inner, strict=True)]
        return [*outputs, outputs[-1][:, :, ::2, ::2]]


class MaskRCNN(nn.Module):
    """The detector. `forward` returns the sum of the five losses times the number of images."""

    def __init__(
        self,
        classes: int,
        sampling: SamplingSettings,
        *,
        width: int = 64,
        fpn_channels: int = 256,
        representation_size: int = 1024,
        pretrained: bool = True,
    ) -> None:
        super().__init__()
        self.classes, self.sampling = classes, sampling
        self.backbone = Backbone(width, fpn_channels, pretrained)
        self.rpn_conv = nn.Conv2d(fpn_channels, fpn_channels, 3, padding=1)
        self.rpn_objectness = nn.Conv2d(fpn_channels, _ANCHORS_PER_CELL, 1)
        self.rpn_deltas = nn.Conv2d(fpn_channels, 4 * _ANCHORS_PER_CELL, 1)
        self.fc1 = nn.Linear(fpn_channels * 49, representation_size)
        self.fc2 = nn.Linear(representation_size, representation_size)
        self.cls_score = nn.Linear(representation_size, classes)
        self.bbox_pred = nn.Linear(representation_size, 4 * classes)
        self.mask_convs = nn.ModuleList(nn.Conv2d(fpn_channels, fpn_channels, 3, padding=1) for _ in range(4))
        self.mask_deconv = nn.ConvTranspose2d(fpn_channels, fpn_channels, 2, 2)
        self.mask_logits = nn.Conv2d(fpn_channels, classes, 1)
        self._initialize(pretrained)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, image_sizes: Tensor, boxes: Tensor, labels: Tensor, outlines: Outlines) -> Tensor:
        """Return the loss of pixels uint8 [N, 3, H, W].

        `image_sizes` [N, 2] are those without padding, `boxes` [N, M, 4], `labels` [N, M], 0 for padding. `outlines`
        are those of the N * M objects.
        """
        feature_maps = self.backbone(images)
        objectness_logits, box_deltas = self.rpn_head(feature_maps)
        anchors = box_ops.anchors(tuple((x.shape[2], x.shape[3]) for x in feature_maps), images.device)
        valid = labels > 0
        total = losses.rpn_loss(
            torch.cat(objectness_logits, 1), torch.cat(box_deltas, 1), torch.cat(anchors), boxes, valid, image_sizes,
            self.sampling.rpn_batch_size_per_image,
        )  # fmt: skip
        with torch.no_grad():
            samples, regions, matches = self._sample_regions(
                objectness_logits, box_deltas, anchors, boxes, valid, image_sizes
            )
            box_index = matches.clamp(min=0)
            region_labels = torch.where(samples.positive, labels.gather(1, box_index), 0)
            target_boxes = boxes.gather(1, box_index[..., None].expand(-1, -1, 4))
        class_logits, class_deltas = self.box_head(self.pool_regions(feature_maps, regions, 7))
        total = total + losses.box_loss(class_logits, class_deltas, regions, target_boxes, region_labels, samples)
        first = self.sampling.max_positives  # positives come first, and only they have masks
        mask_regions = regions[:, :first]
        with torch.no_grad():
            first_object = torch.arange(len(boxes), device=boxes.device)[:, None] * boxes.shape[1]
            objects = matches[:, :first].clamp(min=0) + first_object
            targets = masks.mask_targets(outlines, objects.flatten(), mask_regions.reshape(-1, 4))
        logits = self.mask_head(self.pool_regions(feature_maps, mask_regions, 14), region_labels[:, :first].flatten())
        return (total + losses.mask_loss(logits, targets, samples.positive[:, :first].flatten())) * len(images)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the backbone, which makes the passes over large maps; most of the rest are kernels already."""
        self.backbone.compile(*args, **options)

    def rpn_head(self, feature_maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return objectness logits [N, A_l] and box deltas [N, A_l, 4] of each level, by row, column and ratio."""
        objectness_logits, box_deltas = [], []
        for feature_map in feature_maps:
            x = F.relu(self.rpn_conv(feature_map))
            objectness_logits.append(self.rpn_objectness(x).permute(0, 2, 3, 1).flatten(1))
            box_deltas.append(self.rpn_deltas(x).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)))
        return objectness_logits, box_deltas

    def box_head(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits [R, C] and box deltas [R, C, 4] of features [R, fpn_channels, 7, 7]."""
        x = F.relu(self.fc2(F.relu(self.fc1(pooled.flatten(1)))))
        return self.cls_score(x), self.bbox_pred(x).unflatten(1, (-1, 4))

    def mask_head(self, pooled: Tensor, labels: Tensor) -> Tensor:
        """Return the mask logits [R, 28, 28] of the classes `labels` [R] of features [R, fpn_channels, 14, 14]."""
        x = pooled
        for convolution in self.mask_convs:
            x = F.relu(convolution(x))
        x = F.relu(self.mask_deconv(x))
        class_weights = self.mask_logits.weight.flatten(1)[labels].to(x.dtype)  # other classes are not computed
        assert self.mask_logits.bias is not None
        class_biases = self.mask_logits.bias[labels].to(x.dtype)[:, None, None]
        return torch.einsum("rchw,rc->rhw", x, class_weights) + class_biases

    def pool_regions(self, feature_maps: Sequence[Tensor], regions: Tensor, size: int) -> Tensor:
        """Return features [N * K, fpn_channels, size, size] of regions [N, K, 4] by RoIAlign on their levels."""
        levels = fpn_levels(regions)
        if triton_available(regions):
            return kernels.roi_align(feature_maps[:4], regions, levels, size)
        load_library("_C")
        image = torch.arange(len(regions)).repeat_interleave(regions.shape[1])
        rois, levels = torch.cat([image[:, None].to(regions), regions.flatten(0, 1)], 1), levels.flatten()
        pooled = feature_maps[0].new_zeros(len(rois), feature_maps[0].shape[1], size, size)
        for level, x in enumerate(feature_maps[:4]):
            rows, scale = (levels == level).nonzero()[:, 0], 1 / box_ops.STRIDES[level]
            # bf16 would round the corners
            level_pooled = torch.ops.torchvision.roi_align(x.float(), rois[rows], scale, size, size, 2, False)
            pooled = pooled.index_copy(0, rows, level_pooled.to(x.dtype))
        return pooled

    def _sample_regions(
        self,
        objectness_logits: Sequence[Tensor],
        box_deltas: Sequence[Tensor],
        anchors: Sequence[Tensor],
        boxes: Tensor,
        valid: Tensor,
        image_sizes: Tensor,
    ) -> tuple[Samples, Tensor, Tensor]:
        """Sample proposals and ground-truth boxes; return the samples, their boxes [N, K, 4] and matches [N, K]."""
        settings = self.sampling
        proposal_boxes, proposal_valid, _ = proposals.select_proposals(
            objectness_logits, box_deltas, anchors, image_sizes,
            per_level=settings.proposals_per_level, total=settings.proposals * len(boxes), over_batch=True,
        )  # fmt: skip
        candidates, candidate_valid = torch.cat([proposal_boxes, boxes], 1), torch.cat([proposal_valid, valid], 1)
        matches = proposals.match_proposals(candidates, candidate_valid, boxes, valid)
        samples = proposals.sample(matches, settings.box_batch_size_per_image, settings.positive_fraction)
        regions = candidates.gather(1, samples.indices[..., None].expand(-1, -1, 4))
        return samples, regions, matches.gather(1, samples.indices)

    def _initialize(self, pretrained: bool) -> None:
        """Initialize the heads as the reference does: normal in the RPN and the last box layers, else Kaiming.

        Biases are zero. Without pretrained weights the last mask layer is normal too.
        """
        rpn = (self.rpn_conv, self.rpn_objectness, self.rpn_deltas)
        for layer in rpn:
            nn.init.normal_(layer.weight, std=0.01)
        for dense in (self.fc1, self.fc2):
            nn.init.kaiming_uniform_(dense.weight, a=1)
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        mask_layers = [*self.mask_convs, self.mask_deconv, self.mask_logits]
        for module in mask_layers:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for module in (*rpn, self.fc1, self.fc2, self.cls_score, self.bbox_pred, *mask_layers):
            _zero(module.bias)
        if not pretrained:
            # With few classes Kaiming's values are so large that a new backbone diverges.
            nn.init.normal_(self.mask_logits.weight, std=0.01)


def _upsampled(x: Tensor) -> Tensor:
    """Return [N, C, 2H, 2W]: each cell of x [N, C, H, W] four times; both are channels-last.

    The backward pass of PyTorch's `interpolate` is several times as slow as this sum over four cells.
    """
    count, channels, height, width = x.shape
    repeated = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return repeated.reshape(count, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def _zero(bias: object) -> None:
    assert isinstance(bias, Tensor)
    nn.init.zeros_(bias)


def fpn_levels(regions: Tensor) -> Tensor:
    """Return int64 [...]: the level, 0 for P2 to 3 for P5, of regions [..., 4] (Lin et al. 2017, equation 1)."""
    size = box_ops.area(regions).clamp(min=0).sqrt()
    # Diverged training gives NaN, which must become a valid level, because kernels use it as an index.
    return (4 + (size / 224 + 1e-6).log2()).floor().clamp(2, 5).nan_to_num(2.0).long() - 2
