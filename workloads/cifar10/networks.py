"""Networks for 32x32 images: the two of the RTX 2080 Ti and TPU study, and one like DAWNBench's fastest entries."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.nn.normalized import Normalized

MEAN, _STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # RGB of CIFAR-10, from 0 to 255


def cnn10(classes: int, width: int = 64) -> nn.Module:
    """Build nine 3x3 convolutions and a dense layer, 1.9 million parameters at width 64, as in the study.

    Three convolutions have `width` channels at 32x32, three twice that at 16x16 and three four times that at 8x8.
    """
    layers: list[nn.Module] = []
    in_channels = 3
    for stage, channels in enumerate((width, 2 * width, 4 * width)):
        for _ in range(3):
            layers += _conv_norm_relu(in_channels, channels)
            in_channels = channels
        layers.append(nn.MaxPool2d(2) if stage < 2 else nn.AdaptiveAvgPool2d(1))
    return _finalize(nn.Sequential(*layers, nn.Flatten(), nn.Linear(in_channels, classes)))


def wrn28_10(classes: int, width: int = 16) -> nn.Module:
    """Build the Wide ResNet 28-10 (Zagoruyko and Komodakis 2016): 36.5 million parameters at width 16."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    in_channels = width
    for stage, channels in enumerate((10 * width, 20 * width, 40 * width)):
        for block in range(4):
            layers.append(_WideBlock(in_channels, channels, 2 if stage and not block else 1))
            in_channels = channels
    layers += [nn.BatchNorm2d(in_channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _finalize(nn.Sequential(*layers, nn.Linear(in_channels, classes)))


def resnet9(classes: int, width: int = 64) -> nn.Module:
    """Build eight convolutions with two residual pairs and a dense layer, as in DAWNBench's fastest entries."""
    body = nn.Sequential(
        *_conv_norm_relu(3, width),
        *_conv_norm_relu(width, 2 * width),
        nn.MaxPool2d(2),
        _Residual(2 * width),
        *_conv_norm_relu(2 * width, 4 * width),
        nn.MaxPool2d(2),
        *_conv_norm_relu(4 * width, 8 * width),
        nn.MaxPool2d(2),
        _Residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        _ScaledLinear(8 * width, classes),
    )
    return _finalize(body)


NETWORKS = {"cnn10": cnn10, "wrn28_10": wrn28_10, "resnet9": resnet9}


class _WideBlock(nn.Module):
    """Batch norm, ReLU and convolution, twice; the shortcut is a convolution if the channels differ."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(in_channels), nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        has_projection = in_channels != channels
        self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False) if has_projection else None

    def forward(self, x: Tensor) -> Tensor:
        preactivated = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(preactivated)
        return x + self.conv2(F.relu(self.norm2(self.conv1(preactivated))))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pair = nn.Sequential(*_conv_norm_relu(channels, channels), *_conv_norm_relu(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pair(x)


class _ScaledLinear(nn.Linear):
    """A dense layer with logits divided by eight, so that a high learning rate does not saturate them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 8


def _conv_norm_relu(in_channels: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def _finalize(body: nn.Module) -> nn.Module:
    """Initialize the convolutions, prepend the input normalization and convert to channels-last format."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Normalized(body, MEAN, _STD).to(memory_format=torch.channels_last)
