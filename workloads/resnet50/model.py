"""ResNet-50 v1.5 (stride 2 in the 3x3 convolution) with MLPerf's initialization; names are those of torchvision's."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..common.nn.batch_norm import batch_norm_relu, project, residual_batch_norm_relu
from ..common.nn.stem import MaxPool, SpaceToDepthConv

MEAN = (123.68, 116.78, 103.94)  # RGB, of pixels from 0 to 255; MLPerf's references do not divide by the std


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 with the stride and 1x1, which quadruples the channels; batch norms are fused."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.downsample = _downsample(channels, 4 * width, stride)

    def forward(self, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return [N, 4 * width, H / stride, W / stride] for branch and shortcut of the next block, as are `maps`."""
        y = batch_norm_relu(self.bn1, self.conv1(maps[0]))
        y = batch_norm_relu(self.bn2, self.conv2(y))
        return residual_batch_norm_relu(self.bn3, self.conv3(y), *project(self.downsample, maps[1]))

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The norm before the sum with the shortcut."""
        return self.bn3


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the first with the stride; batch norms are fused."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _downsample(channels, width, stride)

    def forward(self, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return [N, width, H / stride, W / stride] for branch and shortcut of the next block, as are `maps`."""
        y = batch_norm_relu(self.bn1, self.conv1(maps[0]))
        return residual_batch_norm_relu(self.bn2, self.conv2(y), *project(self.downsample, maps[1]))

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The norm before the sum with the shortcut."""
        return self.bn2


BLOCKS: dict[str, type[Bottleneck | BasicBlock]] = {"bottleneck": Bottleneck, "basic": BasicBlock}


class ImageClassifier(nn.Module):
    """A ResNet that takes pixels uint8 [N, 3, H, W] and subtracts the mean itself."""

    mean: Tensor
    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(self, stages: Sequence[int], classes: int, block: str) -> None:
        super().__init__()
        self.conv1, self.bn1, self.maxpool = SpaceToDepthConv(64), nn.BatchNorm2d(64), MaxPool()
        kind, channels = BLOCKS[block], 64
        for stage, depth in enumerate(stages):
            width = 64 * 2**stage
            blocks = nn.Sequential()
            for number in range(depth):
                blocks.append(kind(channels, width, stride=2 if stage and not number else 1))
                channels = width * kind.expansion
            self.add_module(f"layer{stage + 1}", blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, classes)
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits [N, classes]."""
        x = self.maxpool(batch_norm_relu(self.bn1, self.conv1(pixels, self.mean)))
        x, _ = self.layer4(self.layer3(self.layer2(self.layer1((x, x)))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _conv(channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out_channels, size, stride, padding=size // 2, bias=False)


def _downsample(channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """Return the projection of a shortcut whose shape changes."""
    if stride == 1 and channels == out_channels:
        return None
    return nn.Sequential(_conv(channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


def build_resnet(
    stages: Sequence[int], classes: int, *, block: str = "bottleneck", zero_last_gamma: bool = False
) -> ImageClassifier:
    """Build a ResNet in channels-last format; `stages` are the numbers of blocks of each stage.

    (3, 4, 6, 3) is ResNet-50 with bottleneck blocks (25,557,032 parameters with 1000 classes) and ResNet-34, SSD's
    backbone, with basic blocks. Convolutions are initialized he-normal over fan-in, the dense layer normal with
    deviation 0.01, batch norms with ones. `zero_last_gamma` sets the last batch norm of each block to zero, which
    neither MLPerf reference does but published submissions do as an option (docs/mlperf_rules.md, "ResNet-50").
    """
    model = ImageClassifier(stages, classes, block)
    for module in model.modules():
        if zero_last_gamma and isinstance(module, (BasicBlock, Bottleneck)):
            nn.init.zeros_(module.last_norm.weight)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return model.to(memory_format=torch.channels_last)
