"""Input normalization as the first layer of a network, so that it runs on the device and can be fused."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalized(nn.Module):
    """Normalize uint8 images [N, 3, H, W] and apply `body`; `mean` and `std` are per channel, from 0 to 255."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the output of `body`."""
        output: Tensor = self.body((images.float() - self.mean) / self.std)
        return output
