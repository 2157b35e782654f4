"""Residual blocks of ResNets with fused batch norms; their parameters have torchvision's names.

Blocks take and return two maps [N, C, H, W], one for the branch and one for the shortcut.
"""

from torch import Tensor, nn

from .batch_norm import batch_norm_relu, project, residual_batch_norm_relu


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the first with the stride."""

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


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 with the stride and 1x1, which quadruples the channels."""

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


def _conv(channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out_channels, size, stride, padding=size // 2, bias=False)


def _downsample(channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """Return the projection of a shortcut whose shape changes."""
    if stride == 1 and channels == out_channels:
        return None
    return nn.Sequential(_conv(channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))
