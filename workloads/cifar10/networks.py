"""Networks for 32x32 images: two of the RTX 2080 Ti and TPU study, and two of the fastest that reach 94%."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.nn.normalized import Normalized

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # RGB of CIFAR-10, from 0 to 255


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
        _ScaledLinear(8 * width, classes, scale=1 / 8),
    )
    return _finalize(body)


def airbench(classes: int, width: int = 64) -> nn.Module:
    """Build the network of airbench94 (Jordan 2024): whitening, six convolutions and a dense layer, 2 million weights.

    Set the whitening filters by `Whitening.fit` before training.
    """
    blocks = zip((2 * 3 * 4, width, 4 * width), (width, 4 * width, 4 * width), strict=True)
    # Published: logits over the features, weights of variance 1, and a rate of 0.67, where biases have 0.053. With all
    # weights multiplied by `ratio`, the dense layer takes the rate of the biases.
    ratio = (0.053 / 0.67) ** 0.5
    head = _ScaledLinear(4 * width, classes, scale=1 / (4 * width * ratio), bias=False)
    nn.init.normal_(head.weight, std=ratio)
    body = nn.Sequential(
        Whitening(),
        nn.GELU(),
        *(layer for sizes in blocks for layer in _pooled_block(*sizes)),
        nn.MaxPool2d(3),
        nn.Flatten(),
        head,
    )
    return Normalized(body, MEAN, STD).to(memory_format=torch.channels_last)


NETWORKS = {"cnn10": cnn10, "wrn28_10": wrn28_10, "resnet9": resnet9, "airbench": airbench}


class Whitening(nn.Module):
    """Project 2x2 patches of 3 channels on their 12 principal axes and the opposite ones, scaled to unit variance.

    The filters follow from the data (Page 2019) and are not trained; the bias is.
    """

    filters: Tensor
    is_fitted: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.eye(12).view(12, 3, 2, 2).repeat(2, 1, 1, 1))
        self.register_buffer("is_fitted", torch.tensor(False))
        self.bias = nn.Parameter(torch.empty(24).uniform_(-(12**-0.5), 12**-0.5))

    def fit(self, pixels: Tensor, eps: float = 5e-4) -> None:
        """Set the filters in place from images, uint8 [N, H, W, 3], unless they come from a checkpoint."""
        if self.is_fitted:
            return
        variances, axes = torch.linalg.eigh(_patch_moments(pixels))
        filters = (axes.T / (variances[:, None] + eps).sqrt()).view(12, 3, 2, 2)
        self.filters.copy_(torch.cat([filters, -filters]))
        self.is_fitted.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projections [N, 24, H - 1, W - 1]."""
        return F.conv2d(x, self.filters, self.bias)


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
    """A dense layer with scaled logits, so that a high learning rate does not saturate them."""

    def __init__(self, in_features: int, out_features: int, scale: float, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def _patch_moments(pixels: Tensor) -> Tensor:
    """Return the second moments, float64 [12, 12] on the CPU, of normalized 2x2 patches (channel, row, column).

    `pixels` are uint8 [N, H, W, 3]. Sums of whole numbers are exact, so that they are equal on all ranks.
    """
    patches = F.unfold(pixels.permute(0, 3, 1, 2).double(), 2).transpose(0, 1).flatten(1)
    products, sums = ((patches @ other).cpu() / patches.shape[1] for other in (patches.T, torch.ones_like(patches[0])))
    mean, std = (torch.tensor(values, dtype=torch.float64).repeat_interleave(4) for values in (MEAN, STD))
    centered = products - torch.outer(sums, mean) - torch.outer(mean, sums) + torch.outer(mean, mean)
    return centered / torch.outer(std, std)


def _conv_norm_relu(in_channels: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def _pooled_block(in_channels: int, channels: int) -> list[nn.Module]:
    """Return two convolutions, each with batch norm and GELU, the first with pooling before the batch norm.

    A convolution starts as the identity on its first channels.
    """
    layers: list[nn.Module] = []
    for inputs, pooling in ((in_channels, [nn.MaxPool2d(2)]), (channels, [])):
        convolution = nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
        nn.init.dirac_(convolution.weight.data[:inputs])
        norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
        norm.weight.requires_grad = False
        layers += [convolution, *pooling, norm, nn.GELU()]
    return layers


def _finalize(body: nn.Module) -> nn.Module:
    """Initialize the convolutions, prepend the input normalization and convert to channels-last format."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Normalized(body, MEAN, STD).to(memory_format=torch.channels_last)
