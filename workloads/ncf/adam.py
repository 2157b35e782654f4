"""Adam for tables that are small for a GPU."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from ...runner.hardware.devices import is_nvidia_gpu

_PIECES = 64  # that all weights are divided into, about
_MIN_PIECE = 4096  # weights; other pieces are a multiple, so that vectors of weights stay whole
_PYTORCH_PIECE = 65_536  # weights that PyTorch gives to a multiprocessor


class PiecewiseAdam(Adam):
    """PyTorch's fused Adam, which on a GPU of NVIDIA gets tables in so many pieces that many multiprocessors have one.

    PyTorch divides tensors into pieces of 65,536 weights: 8 for NCF's tables with a million ratings, instead of 59
    here. Weights are equal to the bit.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, lr, betas, eps, fused=True)
        self.divides = is_nvidia_gpu(self.param_groups[0]["params"][0].device)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights."""
        (group,) = self.param_groups
        weights = sum(param.numel() for param in group["params"])
        size = math.ceil(weights / (_PIECES * _MIN_PIECE)) * _MIN_PIECE
        if not self.divides or size >= _PYTORCH_PIECE or closure is not None:
            return super().step(closure)
        params, gradients, means, squares, _, steps = lists = [list[Tensor]() for _ in range(6)]
        self._init_group(group, *lists)
        skip = getattr(self, "found_inf", None)  # set by a gradient scaler
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            _divide(params, size),
            _divide(gradients, size),
            _divide(means, size),
            _divide(squares, size),
            max_exp_avg_sqs=[],
            state_steps=[
                step for param, step in zip(params, steps, strict=True) for _ in range(0, param.numel(), size)
            ],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=skip,
        )
        if skip is not None:
            torch._foreach_sub_(steps, [skip] * len(steps))
        return None


def _divide(tensors: list[Tensor], size: int) -> list[Tensor]:
    return [piece for tensor in tensors for piece in tensor.view(-1).split(size)]
