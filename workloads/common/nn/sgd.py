"""SGD as all workloads with it have it: fused, and safe where loss scaling skips the first update."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD


def sgd(weights: Iterable[Tensor] | Iterable[dict[str, Any]], rate: float, momentum: float, **more: Any) -> SGD:
    """PyTorch's fused SGD with momenta that are zero from the start, which makes the first update what it is anyway.

    By itself it takes fresh memory for them at the first update. With fp16 that one is usually skipped, for a gradient
    that is not finite, and then whatever lay in that memory becomes the momentum.
    """
    optimizer = SGD(weights, rate, momentum, fused=True, **more)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def rise_and_fall(epochs: float, warmup_epochs: float, end_epoch: float) -> float:
    """The share of the full learning rate after `epochs`: linearly up over the warm-up, linearly to zero at the end."""
    if epochs < warmup_epochs:
        return epochs / warmup_epochs
    return max(0.0, (end_epoch - epochs) / (end_epoch - warmup_epochs))
