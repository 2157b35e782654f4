"""The blocks of Mask R-CNN's ResNet-50, and their norms."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FrozenNorm(nn.Module):
    """A batch norm that was folded into a scale and a shift of each channel, and is not trained."""

    weight: Tensor
    bias: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W]."""
        shape = (1, -1, 1, 1)
        return x * self.weight.view(shape).to(x.dtype) + self.bias.view(shape).to(x.dtype)


def norm(channels: int, pretrained: bool) -> nn.Module:
    """Frozen where the weights are given; else over groups, which need no large batch (He et al. 2018, section 3).

    There are 32 groups, or fewer so that none has less than two channels, as in the narrowest stage of ResNet-50.
    """
    if pretrained:
        return FrozenNorm(channels)
    return nn.GroupNorm(math.gcd(32, channels, max(1, channels // 2)), channels)


class Bottleneck(nn.Module):
    """Three convolutions, the stride in the first, 1x1, as the reference's backbone was trained."""

    def __init__(self, channels: int, between: int, stride: int, pretrained: bool) -> None:
        super().__init__()
        out = 4 * between
        self.conv1, self.bn1 = nn.Conv2d(channels, between, 1, stride, bias=False), norm(between, pretrained)
        self.conv2, self.bn2 = nn.Conv2d(between, between, 3, 1, 1, bias=False), norm(between, pretrained)
        self.conv3, self.bn3 = nn.Conv2d(between, out, 1, bias=False), norm(out, pretrained)
        same = channels == out and stride == 1
        shortcut = [] if same else [nn.Conv2d(channels, out, 1, stride, bias=False), norm(out, pretrained)]
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4 * between, H / stride, W / stride]."""
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))
