#!/usr/bin/env python
"""Time an SSD with ResNet-34 of stock PyTorch operations and torchvision's trunk, to compare `workload=ssd` with.

    python -P scripts/baselines/stock_ssd.py [--batch N] [--steps N] [--eager]

It has the layers and sizes of MLPerf's SSD, SGD, bf16, channels-last and `torch.compile`. The images and the matched
boxes stay on the device: preparing and matching them, which `timetrial throughput workload=ssd` includes, cost it
nothing. Prints one JSON line. Leave the machine idle.
"""

import json

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet34

from timetrial.scripts.baselines.stock_training import parse_arguments, prepare_device, time_training

_CLASSES, _PRIORS = 81, (4, 6, 6, 6, 4, 4)  # prior boxes of a cell of each feature map
# Channels of the 1x1 and the 3x3 convolution, stride and padding of the 3x3.
_EXTRA_LAYERS = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
_NEGATIVES_PER_POSITIVE = 3


class StockSSD(nn.Module):
    """Map images [N, 3, 300, 300] to box deltas [N, P, 4] and class logits [N, P, C] of P prior boxes."""

    def __init__(self) -> None:
        super().__init__()
        trunk = resnet34()
        for layer in (trunk.layer3[0].conv1, trunk.layer3[0].downsample[0]):
            layer.stride = (1, 1)
        parts = (trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool, trunk.layer1, trunk.layer2, trunk.layer3)
        self.trunk, channels = nn.Sequential(*parts), [256]
        self.extra_layers = nn.ModuleList()
        for inner, outer, stride, padding in _EXTRA_LAYERS:
            convolutions = nn.Conv2d(channels[-1], inner, 1), nn.Conv2d(inner, outer, 3, stride, padding)
            self.extra_layers.append(nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU()))
            channels.append(outer)
        pairs = list(zip(channels, _PRIORS, strict=True))
        self.boxes = nn.ModuleList(nn.Conv2d(size, 4 * priors, 3, padding=1) for size, priors in pairs)
        self.classes = nn.ModuleList(nn.Conv2d(size, _CLASSES * priors, 3, padding=1) for size, priors in pairs)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return deltas and logits."""
        maps = [self.trunk(images)]
        for layer in self.extra_layers:
            maps.append(layer(maps[-1]))
        outputs = []
        for heads, size in ((self.boxes, 4), (self.classes, _CLASSES)):
            parts = [head(x).permute(0, 2, 3, 1).reshape(len(x), -1, size) for head, x in zip(heads, maps, strict=True)]
            outputs.append(torch.cat(parts, 1))
        return outputs[0], outputs[1]


def loss(deltas: Tensor, logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """Return smooth L1 of the positives plus cross entropy of them and of their hardest negatives, per positive."""
    positive = labels > 0
    count = positive.sum(1)
    of_boxes = (F.smooth_l1_loss(deltas.float(), targets, reduction="none").sum(2) * positive).sum(1)
    of_classes = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
    rank = of_classes.masked_fill(positive, 0).argsort(1, descending=True).argsort(1)
    chosen = positive | (rank < _NEGATIVES_PER_POSITIVE * count[:, None])
    return ((of_boxes + (of_classes * chosen).sum(1)) / count.clamp(min=1)).mean()


def main() -> None:
    """Time the training steps."""
    arguments, device = parse_arguments(__doc__, batch=256), prepare_device()
    model = StockSSD().to(device, memory_format=torch.channels_last)
    images = torch.randn(arguments.batch, 3, 300, 300, device=device).contiguous(memory_format=torch.channels_last)
    deltas, _ = model(images[:1])
    targets = torch.randn(arguments.batch, *deltas.shape[1:], device=device)
    labels = torch.randint(_CLASSES, targets.shape[:2], device=device) * (
        torch.rand(targets.shape[:2], device=device) < 0.01
    )
    figures = time_training(model, images, lambda outputs: loss(*outputs, targets, labels), arguments)
    print(json.dumps({"priors": deltas.shape[1]} | figures))


if __name__ == "__main__":
    main()
