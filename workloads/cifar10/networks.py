"""Networks for 32x32 images: the two of the 2080 Ti against TPU study, and one in the manner of DAWNBench's entries."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.nn.normalized import Normalised

MEANS, _DEVIATIONS = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of CIFAR-10's pixels, from 0 to 255


def cnn10(classes: int, width: int = 64) -> nn.Module:
    """Nine 3x3 convolutions, three of `width` at 32x32, of twice that at 16x16, of four times at 8x8; one dense layer.

    1.9 million parameters at width 64, as in the study.
    """
    layers: list[nn.Module] = []
    before = 3
    for stage, channels in enumerate((width, 2 * width, 4 * width)):
        for _ in range(3):
            layers += _conv_norm_relu(before, channels)
            before = channels
        layers.append(nn.MaxPool2d(2) if stage < 2 else nn.AdaptiveAvgPool2d(1))
    return _ready(nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, classes)))


def wrn28_10(classes: int, width: int = 16) -> nn.Module:
    """Wide ResNet of depth 28 and factor 10 (Zagoruyko and Komodakis 2016): 36.5 million parameters at width 16."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    before = width
    for stage, channels in enumerate((10 * width, 20 * width, 40 * width)):
        for block in range(4):
            layers.append(_WideBlock(before, channels, 2 if stage and not block else 1))
            before = channels
    layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return _ready(nn.Sequential(*layers))


def resnet9(classes: int, width: int = 64) -> nn.Module:
    """Eight convolutions with two residual pairs and a dense layer, the shape of DAWNBench's fastest entries."""
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
        _Scaled(8 * width, classes),
    )
    return _ready(body)


NETWORKS = {"cnn10": cnn10, "wrn28_10": wrn28_10, "resnet9": resnet9}


class _WideBlock(nn.Module):
    """Norm, ReLU, convolution, twice; the shortcut is a convolution where shapes differ."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False) if before != channels else None

    def forward(self, x: Tensor) -> Tensor:
        ready = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(ready)
        return x + self.conv2(F.relu(self.norm2(self.conv1(ready))))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pair = nn.Sequential(*_conv_norm_relu(channels, channels), *_conv_norm_relu(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pair(x)


class _Scaled(nn.Linear):
    """A dense layer whose logits are an eighth, so that a high learning rate does not saturate them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 8


def _conv_norm_relu(before: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def _ready(body: nn.Module) -> nn.Module:
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Normalised(body, MEANS, _DEVIATIONS).to(memory_format=torch.channels_last)
