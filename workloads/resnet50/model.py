"""ResNet-50 v1.5 (He et al. 2015; stride 2 in the 3x3 convolution): torchvision's trunk, MLPerf's initial values."""

from collections.abc import Sequence

from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet


def build(stages: Sequence[int], classes: int) -> ResNet:
    """`stages` counts the bottlenecks of each stage, (3, 4, 6, 3) for ResNet-50 (25,557,032 parameters, 1000 classes).

    Convolutions are he-normal over fan-in, the dense layer normal with deviation 0.01, batch norms start at one:
    neither MLPerf reference starts a block's last one at zero.
    """
    model = ResNet(Bottleneck, list(stages), num_classes=classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return model
