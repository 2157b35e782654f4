"""ResNet-50's residual block for Mask R-CNN, and its normalization layers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .group_norm import GroupNorm


class FrozenBatchNorm2d(nn.Module):
    """A batch norm folded into a scale and a shift per channel, which are not trained."""

    weight: Tensor
    bias: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, channels, H, W]."""
        shape = (1, -1, 1, 1)
        return x * self.weight.view(shape).to(x.dtype) + self.bias.view(shape).to(x.dtype)


def norm_layer(channels: int, pretrained: bool) -> nn.Module:
    """Return a frozen batch norm for pretrained weights, else a group norm, which needs no large batch.

    He et al. 2018, section 3, train from scratch with group norm. It has 32 groups, or fewer, so that each has two
    channels or more.
    """
    if pretrained:
        return FrozenBatchNorm2d(channels)
    return GroupNorm(math.gcd(32, channels, max(1, channels // 2)), channels)


class Bottleneck(nn.Module):
    """Three convolutions with the stride in the first 1x1, as in the reference's backbone."""

    def __init__(self, in_channels: int, channels: int, stride: int, pretrained: bool) -> None:
        super().__init__()
        out_channels = 4 * channels
        self.conv1 = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
        self.bn1 = norm_layer(channels, pretrained)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(channels, pretrained)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = norm_layer(out_channels, pretrained)
        self.downsample = nn.Sequential()
        if in_channels != out_channels or stride != 1:
            self.downsample.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.downsample.append(norm_layer(out_channels, pretrained))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 4 * channels, H / stride, W / stride]."""
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))
