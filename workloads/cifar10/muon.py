"""Muon (Jordan et al. 2024) as in airbench94: it updates the filters of convolutions, and SGD all other weights.

`torch.optim.Muon` differs: it takes matrices only, does not rescale the weights, and iterates five times.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, required

from ..common.nn.sgd import zero_momentum

# x -> ax + bx^3 + cx^5 moves singular values from (0, 1] to about 1 in a few iterations (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 3


class Muon(Optimizer):
    """Nesterov's momentum; groups with `orthogonal` hold filters [out, in, height, width].

    The filters of a layer keep the norm sqrt(out). Their update, as a matrix [out, in * height * width], is replaced by
    an almost orthogonal one with the same singular vectors. Learning rates may be tensors on the device, as captured
    steps need.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"orthogonal": False, "weight_decay": 0.0, "lr": required, "momentum": required})
        zero_momentum(self)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            gradients: list[Any] = [param.grad for param in params]
            if group["weight_decay"]:
                gradients = list(torch._foreach_add(gradients, params, alpha=group["weight_decay"]))
            momenta = [self.state[param]["momentum_buffer"] for param in params]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, gradients)
            updates = list(torch._foreach_add(gradients, momenta, alpha=group["momentum"]))
            if group["orthogonal"]:
                updates = orthogonalize(updates)
                for param, norm in zip(params, torch._foreach_norm(params), strict=True):
                    param.mul_(len(param) ** 0.5 / norm)
            torch._foreach_mul_(updates, group["lr"])
            torch._foreach_sub_(params, updates)


def orthogonalize(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor [rows, ...], as a matrix, with its singular values moved close to 1.

    They end between 0.6 and 1.3, unless they are tiny, after three Newton-Schulz iterations in bf16. Matrices of one
    shape are multiplied together.
    """
    by_shape: dict[torch.Size, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        by_shape[tensor.flatten(1).shape].append(number)
    found = list(tensors)
    for numbers in by_shape.values():
        x = torch.stack([tensors[number].flatten(1) for number in numbers])
        x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)).bfloat16()
        is_tall = x.shape[1] > x.shape[2]
        x = x.mT if is_tall else x
        for _ in range(_ITERATIONS):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
        x = x.mT if is_tall else x
        for number, matrix in zip(numbers, x, strict=True):
            found[number] = matrix.view(tensors[number].shape).to(tensors[number].dtype)
    return found
