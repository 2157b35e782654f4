"""SGD for all workloads: fused, and safe if loss scaling skips the first update."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


def sgd(params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float, **kwargs: Any) -> SGD:
    """Return PyTorch's fused SGD with momentum buffers initialized to zero, which does not change the first update.

    Without this, PyTorch allocates uninitialized buffers at the first update. In fp16 the gradient scaler usually skips
    that update because a gradient is not finite, and the uninitialized memory becomes the momentum.
    """
    optimizer = SGD(params, lr, momentum, fused=True, **kwargs)
    zero_momentum(optimizer)
    return optimizer


def zero_momentum(optimizer: Optimizer, name: str = "momentum_buffer") -> None:
    """Set the momentum of each parameter to zero; `name` is its key in the optimizer's state."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            optimizer.state[param][name] = torch.zeros_like(param)


def linear_warmup_decay(epochs: float, warmup_epochs: float, end_epoch: float) -> float:
    """Return the learning rate factor after `epochs`: linear from 0 to 1 in the warm-up, then linear to 0."""
    if epochs < warmup_epochs:
        return epochs / warmup_epochs
    return max(0.0, (end_epoch - epochs) / (end_epoch - warmup_epochs))
