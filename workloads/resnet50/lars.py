"""LARS (You et al. 2017) with the update of MLPerf's TensorFlow 2 reference."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..common.nn.sgd import zero_momentum

TRUST_COEFFICIENT = 0.001


class LARS(Optimizer):
    """SGD with layer-wise learning rates: lr * 0.001 |w| / (|g| + decay |w| + epsilon).

    The update is m <- momentum m + rate (g + decay w), w <- w - m. Groups with `adapt` False (biases and batch norms)
    have plain momentum without weight decay. All tensors of a group are updated by a few fused kernels, and nothing
    waits for the device.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, epsilon: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "epsilon": epsilon, "adapt": True}
        super().__init__(params, defaults)
        zero_momentum(self, "momentum")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            updates = [weight.grad for weight in weights]
            if group["adapt"]:
                updates = self._adapt(weights, updates, group)
            momenta = [self.state[weight]["momentum"] for weight in weights]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, torch._foreach_mul(updates, group["lr"]))
            torch._foreach_sub_(weights, momenta)

    def _adapt(self, weights: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return gradients with weight decay, scaled by each layer's trust ratio; the ratio is 1 if a norm is 0."""
        decay = group["weight_decay"]
        weight_norms = torch.stack(torch._foreach_norm(weights))
        gradient_norms = torch.stack(torch._foreach_norm(gradients))
        trust_ratios = TRUST_COEFFICIENT * weight_norms / (gradient_norms + decay * weight_norms + group["epsilon"])
        has_norms = (weight_norms > 0) & (gradient_norms > 0)
        trust_ratios = torch.where(has_norms, trust_ratios, torch.ones_like(trust_ratios))
        updates = torch._foreach_add(gradients, weights, alpha=decay)
        torch._foreach_mul_(updates, list(trust_ratios.unbind()))
        return list(updates)
