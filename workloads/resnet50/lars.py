"""LARS (You et al. 2017) with the update of MLPerf's TensorFlow 2 reference."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENT = 0.001


class LARS(Optimizer):
    """Layer-wise rates: lr * 0.001 |w| / (|g| + decay |w| + epsilon) for weights, plain momentum for vectors.

    Momentum is m <- momentum m + rate (g + decay w), w <- w - m. Groups with `adapt` False (biases and batch norms) are
    neither scaled nor decayed. All tensors of a group are updated by a few fused kernels, and nothing waits.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, epsilon: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "epsilon": epsilon, "adapt": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            changes = [weight.grad for weight in weights]
            if group["adapt"]:
                changes = self._adapted(weights, changes, group)
            momenta = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in weights]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, changes, alpha=group["lr"])
            torch._foreach_sub_(weights, momenta)

    def _adapted(self, weights: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Gradients with decay, each layer's scaled by its trust ratio; the ratio is 1 where a norm is 0."""
        decay = group["weight_decay"]
        lengths, slopes = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(gradients))
        trust = COEFFICIENT * lengths / (slopes + decay * lengths + group["epsilon"])
        trust = torch.where((lengths > 0) & (slopes > 0), trust, torch.ones_like(trust))
        changes = torch._foreach_add(gradients, weights, alpha=decay)
        torch._foreach_mul_(changes, list(trust.unbind()))
        return list(changes)
