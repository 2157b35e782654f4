"""ResNet-50 v1.5 (stride 2 in the 3x3 convolution) with MLPerf's initialization; names are those of torchvision's."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..common.nn.batch_norm import batch_norm_relu
from ..common.nn.residual import BasicBlock, Bottleneck
from ..common.nn.stem import MaxPool, SpaceToDepthConv

MEAN = (123.68, 116.78, 103.94)  # RGB, of pixels from 0 to 255; MLPerf's references do not divide by the std
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
