"""Pixels as loaders hand them over, normalised by the network itself: on the device, and fused there."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalised(nn.Module):
    """A network that takes pixels uint8 [N, 3, H, W]; `means` and `deviations` are of the channels, from 0 to 255."""

    means: Tensor
    deviations: Tensor

    def __init__(self, body: nn.Module, means: Sequence[float], deviations: Sequence[float]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("means", torch.tensor(means).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviations", torch.tensor(deviations).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """What `body` says of them."""
        said: Tensor = self.body((pixels.float() - self.means) / self.deviations)
        return said
