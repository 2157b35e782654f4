"""ResNet-50 v1.5 (He et al. 2015; stride 2 in the 3x3 convolution): torchvision's trunk, MLPerf's initial values."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

MEANS = (123.68, 116.78, 103.94)  # RGB, of pixels from 0 to 255; MLPerf's references divide by no deviation
BLOCKS = {"bottleneck": Bottleneck, "basic": BasicBlock}


class Stem(nn.Conv2d):
    """The 7x7 convolution of stride 2 on three channels, computed as 4x4 of stride 1 on twelve.

    Every 2x2 pixels become one of twelve channels and the kernel, padded to 8x8, is cut likewise: the same sums, but
    tensor cores do not idle on three channels (PERFORMANCE.md).
    """

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] to [N, 64, H/2, W/2], halves rounded up: odd images get the zeros that a border has anyway."""
        if images.shape[2] % 2 or images.shape[3] % 2:
            images = F.pad(images, (0, images.shape[3] % 2, 0, images.shape[2] % 2))
        out, channels = self.weight.shape[:2]
        padded = F.pad(self.weight, (1, 0, 1, 0)).view(out, channels, 4, 2, 4, 2)
        kernel = padded.permute(0, 1, 3, 5, 2, 4).reshape(out, channels * 4, 4, 4)
        return F.conv2d(F.pad(F.pixel_unshuffle(images, 2), (2, 1, 2, 1)), kernel)


class ImageClassifier(ResNet):  # type: ignore[misc]
    """A ResNet that takes pixels uint8 [N, 3, H, W] as they come from a loader, and normalises them itself."""

    means: Tensor

    def __init__(self, stages: Sequence[int], classes: int, block: str) -> None:
        super().__init__(BLOCKS[block], list(stages), num_classes=classes)
        self.conv1 = Stem(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.register_buffer("means", torch.tensor(MEANS).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits [N, classes]."""
        return super().forward(pixels.float() - self.means)


def build(
    stages: Sequence[int], classes: int, *, block: str = "bottleneck", zero_last_gamma: bool = False
) -> ImageClassifier:
    """`stages` counts the blocks of each stage, (3, 4, 6, 3) for ResNet-50 (25,557,032 parameters, 1000 classes).

    With basic blocks these are ResNet-34, from which SSD starts.
    Convolutions are he-normal over fan-in, the dense layer normal with deviation 0.01, batch norms start at one; with
    `zero_last_gamma` the last one of each block starts at zero, as in neither MLPerf reference but as an option in
    published submissions (mlperf.md 12.1). Weights lie channels-last.
    """
    model = ImageClassifier(stages, classes, block)
    for module in model.modules():
        if zero_last_gamma and isinstance(module, (BasicBlock, Bottleneck)):
            nn.init.zeros_((module.bn3 if isinstance(module, Bottleneck) else module.bn2).weight)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return model.to(memory_format=torch.channels_last)
