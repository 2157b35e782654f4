"""SSD with ResNet-34 as MLPerf defines it (docs/mlperf_rules.md, "SSD").

The backbone ends with conv4 at stride 8; five extra feature maps and two heads follow. Shapes: N images, P priors, C
classes with the background first, M boxes per image.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...runner.training.eager import keep_eager
from ..common.nn.batch_norm import batch_norm_relu
from ..common.nn.residual import BasicBlock
from ..common.nn.stem import MaxPool, SpaceToDepthConv
from . import priors

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # RGB, of pixels from 0 to 1
# Of each extra map: channels of the 1x1 and the 3x3 convolution at width 64, stride and padding of the 3x3.
_EXTRA_LAYERS = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
_BLOCKS_PER_STAGE = (3, 4, 6)
_NEGATIVES_PER_POSITIVE = 3
_HEAD_MULTIPLE = 8  # of the outputs of the heads' convolutions


class Backbone(nn.Module):
    """ResNet-34 up to conv4, whose stride is 1 instead of 2."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.max_pool = SpaceToDepthConv(width), nn.BatchNorm2d(width), MaxPool()
        channels = (width, width, 2 * width, 4 * width)
        for stage, (blocks, stride) in enumerate(zip(_BLOCKS_PER_STAGE, (1, 2, 1), strict=True), start=1):
            first = BasicBlock(channels[stage - 1], channels[stage], stride)
            rest = [BasicBlock(channels[stage], channels[stage], 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # as torchvision initializes ResNets
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for name, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(name, 255 * torch.tensor(values).view(1, 3, 1, 1), persistent=False)

    @keep_eager  # the kernels of its batch norms are faster than generated ones (PERFORMANCE.md)
    def forward(self, pixels: Tensor) -> Tensor:
        """Return [N, 4 * width, H / 8, W / 8] of pixels uint8 [N, 3, H, W]."""
        x = self.max_pool(batch_norm_relu(self.bn1, self.conv1(pixels, self.mean, self.std)))
        maps = x, x
        for stage in range(1, len(_BLOCKS_PER_STAGE) + 1):
            maps = self.get_submodule(f"layer{stage}")(maps)
        return maps[0]


class SSD(nn.Module):
    """The detector. `forward` returns the loss summed over the images; `predict` returns the input of `detect`."""

    priors: Tensor

    def __init__(self, classes: int, image_size: int, width: int = 64) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = Backbone(width)
        map_sizes = feature_map_sizes(image_size)
        extra_layers = _EXTRA_LAYERS[: len(map_sizes) - 1]
        channels = [4 * width, *(out * width // 64 for _, out, _, _ in extra_layers)]
        self.extra_layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(in_channels, bottleneck * width // 64, 1), nn.ReLU(),
                nn.Conv2d(bottleneck * width // 64, out_channels, 3, stride, padding), nn.ReLU(),
            )
            for in_channels, out_channels, (bottleneck, _, stride, padding)
            in zip(channels, channels[1:], extra_layers, strict=False)
        )  # fmt: skip
        priors_per_cell = priors.PRIORS_PER_CELL[: len(map_sizes)]
        self.regression_heads, self.classification_heads = (
            nn.ModuleList(
                nn.Conv2d(size, outputs * count, 3, padding=1)
                for size, count in zip(channels, priors_per_cell, strict=True)
            )
            for outputs in (4, classes)
        )
        for part in (self.extra_layers, self.regression_heads, self.classification_heads):
            for module in part.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.xavier_uniform_(module.weight)
        self.register_buffer("priors", priors.prior_boxes(map_sizes), persistent=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of pixels uint8 [N, 3, H, W], corner boxes [N, M, 4] and labels [N, M], 0 for padding."""
        box_deltas, class_logits = self.predict(images)
        with torch.autocast(images.device.type, enabled=False):
            targets = priors.match(boxes, labels, self.priors)
            return multibox_loss(box_deltas.float(), class_logits, *targets, self.priors)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return box deltas [N, P, 4] and class logits [N, P, C] of pixels uint8 [N, 3, H, W]."""
        feature_maps = [self.backbone(images)]
        for layer in self.extra_layers:
            feature_maps.append(layer(feature_maps[-1]))
        heads = zip(self.regression_heads, self.classification_heads, strict=True)
        outputs = [both_heads(x, *of_map) for x, of_map in zip(feature_maps, heads, strict=True)]
        deltas, logits = (torch.cat([part.flatten(1) for part in parts], 1) for parts in zip(*outputs, strict=True))
        return deltas.unflatten(1, (-1, 4)), logits.unflatten(1, (-1, self.classes))


def both_heads(x: Tensor, *heads: nn.Module) -> tuple[Tensor, ...]:
    """Return the outputs [N, H, W, outputs] of both 3x3 heads for a map [N, C, H, W], by one convolution.

    It reads the map once, and zeros fill its outputs up to a multiple of eight, which tensor cores need: 486 for 81
    classes and 6 priors are none.
    """
    weights, biases = (tuple(head.get_parameter(name) for head in heads) for name in ("weight", "bias"))
    outputs = [len(bias) for bias in biases]
    padding = -sum(outputs) % _HEAD_MULTIPLE
    weight = F.pad(torch.cat(weights), (0, 0, 0, 0, 0, 0, 0, padding))
    bias = F.pad(torch.cat(biases), (0, padding))
    y = F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), bias, padding=1).permute(0, 2, 3, 1)
    return y.split([*outputs, padding], -1)[: len(heads)]


def multibox_loss(
    box_deltas: Tensor, class_logits: Tensor, boxes: Tensor, labels: Tensor, prior_boxes: Tensor
) -> Tensor:
    """Return smooth L1 plus cross entropy, divided by an image's positives and summed over the images.

    `box_deltas` [N, P, 4] and `class_logits` [N, P, C] are compared with center-format `boxes` [N, P, 4] and `labels`
    [N, P]. The cross entropy covers the positives and the hardest negatives, three per positive. An image without a box
    adds nothing.
    """
    positive = labels > 0
    positives = positive.sum(1)
    target_deltas = priors.encode(boxes, prior_boxes).masked_fill(~positive[..., None], 0.0)
    smooth_l1 = F.smooth_l1_loss(box_deltas, target_deltas, reduction="none")
    box_loss = (smooth_l1.sum(2) * positive).sum(1)
    cross_entropy = F.cross_entropy(class_logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    cross_entropy = cross_entropy.view_as(labels)
    negative_loss = cross_entropy.detach().masked_fill(positive, 0.0)
    hardness_rank = negative_loss.argsort(stable=True, dim=1, descending=True).argsort(1)
    negatives = (_NEGATIVES_PER_POSITIVE * positives).clamp(max=labels.shape[1])
    selected = positive | (hardness_rank < negatives[:, None])
    total = box_loss + (cross_entropy * selected).sum(1)
    return (total * (positives > 0) / positives.clamp(min=1)).sum()


def feature_map_sizes(image_size: int) -> list[int]:
    """Return the side lengths of the feature maps: 38, 19, 10, 5, 3, 1 for 300 pixels; fewer for smaller images."""
    sizes = [-(-image_size // 8)]
    for _, _, stride, padding in _EXTRA_LAYERS:
        size = (sizes[-1] + 2 * padding - 3) // stride + 1
        if size < 1:
            break
        sizes.append(size)
    return sizes
