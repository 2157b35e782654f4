"""ResNet-50 v1.5 (stride 2 in the 3x3 convolution): torchvision's network with MLPerf's initialization."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from ..common.nn.batch_norm import batch_norm_relu, project, residual_batch_norm_relu
from ..common.nn.stem import MaxPool, SpaceToDepthConv

MEAN = (123.68, 116.78, 103.94)  # RGB, of pixels from 0 to 255; MLPerf's references do not divide by the std


class FusedBottleneck(Bottleneck):  # type: ignore[misc]
    """torchvision's bottleneck block with fused batch norms."""

    def forward(self, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return [N, 4 * width, H / stride, W / stride] for branch and shortcut of the next block, as are `maps`."""
        y = batch_norm_relu(self.bn1, self.conv1(maps[0]))
        y = batch_norm_relu(self.bn2, self.conv2(y))
        return residual_batch_norm_relu(self.bn3, self.conv3(y), *project(self.downsample, maps[1]))


class FusedBasicBlock(BasicBlock):  # type: ignore[misc]
    """torchvision's basic block with fused batch norms."""

    def forward(self, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return [N, width, H / stride, W / stride] for branch and shortcut of the next block, as are `maps`."""
        y = batch_norm_relu(self.bn1, self.conv1(maps[0]))
        return residual_batch_norm_relu(self.bn2, self.conv2(y), *project(self.downsample, maps[1]))


BLOCKS = {"bottleneck": FusedBottleneck, "basic": FusedBasicBlock}


class ImageClassifier(ResNet):  # type: ignore[misc]
    """A ResNet that takes pixels uint8 [N, 3, H, W] and subtracts the mean itself."""

    mean: Tensor

    def __init__(self, stages: Sequence[int], classes: int, block: str) -> None:
        super().__init__(BLOCKS[block], list(stages), num_classes=classes)
        self.conv1, self.maxpool = SpaceToDepthConv(64), MaxPool()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits [N, classes]."""
        x = self.maxpool(batch_norm_relu(self.bn1, self.conv1(pixels, self.mean)))
        x, _ = self.layer4(self.layer3(self.layer2(self.layer1((x, x)))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


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
            nn.init.zeros_((module.bn3 if isinstance(module, Bottleneck) else module.bn2).weight)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return model.to(memory_format=torch.channels_last)
