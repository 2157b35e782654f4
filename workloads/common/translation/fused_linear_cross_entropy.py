"""Linear projection and cross entropy over a large vocabulary in one function that does not keep the logits.

Shapes: T rows, H hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....runner.hardware.devices import has_mixed_addmm
from ..nn.autocast import matmul_dtype
from ..nn.eager import keep_eager
from ..nn.triton_support import triton_available
from . import kernels

_LOGITS_PER_CHUNK = 1 << 29  # 1 GiB in 16 bits
_FP16_GRADIENT_SCALE = 16.0  # the gradient of an unlikely word's logit would underflow in fp16


@keep_eager
def fused_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    target_weight: float,
    smoothing_weight: float,
) -> Tensor:
    """Return the sum over rows of -sum_v q_v log p_v, where p = softmax(hidden [T, H] @ weight [V, H].T + bias [V]).

    q is `smoothing_weight` for every word plus `target_weight` for the label; it must sum to 1. Rows with a negative
    label are ignored.
    """
    if torch.is_grad_enabled():
        return _FusedLinearCrossEntropy.apply(hidden, weight, bias, labels, target_weight, smoothing_weight)
    low_hidden, low_weight, low_bias = _cast(hidden, weight, bias)
    with torch.autocast(hidden.device.type, enabled=False):
        rows = _chunk_rows(weight)
        losses = [
            _cross_entropy_(F.linear(part, low_weight, low_bias), part_labels, target_weight, smoothing_weight, 1.0)
            for part, part_labels in zip(low_hidden.split(rows), labels.split(rows), strict=True)
        ]
    return torch.cat(losses).sum()


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """The forward pass computes the gradients too; the backward pass multiplies them by the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target_weight: float,
        smoothing_weight: float,
    ) -> Tensor:
        low_hidden, low_weight, low_bias = _cast(hidden, weight, bias)
        dtype = low_weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):
            gradient_scale = _FP16_GRADIENT_SCALE if dtype == torch.float16 else 1.0
            loss = torch.zeros((), dtype=torch.float32 if dtype.itemsize < 4 else dtype, device=hidden.device)
            grad_hidden, grad_weight = torch.empty_like(low_hidden), torch.zeros_like(weight)
            grad_bias = None if bias is None else torch.zeros_like(bias)
            chunk_rows = _chunk_rows(weight)
            for start in range(0, len(low_hidden), chunk_rows):
                chunk = slice(start, start + chunk_rows)
                logits = F.linear(low_hidden[chunk], low_weight, low_bias)
                loss += _cross_entropy_(logits, labels[chunk], target_weight, smoothing_weight, gradient_scale).sum()
                torch.mm(logits, low_weight, out=grad_hidden[chunk])
                _add_product_(grad_weight, logits.T, low_hidden[chunk])
                if grad_bias is not None:
                    grad_bias += logits.sum(0, dtype=grad_bias.dtype)
        ctx.gradient_scale = gradient_scale
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        scale = grad_outputs[0] / ctx.gradient_scale
        return (
            (grad_hidden * scale).to(ctx.dtype),
            grad_weight * scale,
            None if grad_bias is None else grad_bias * scale,
            None,
            None,
            None,
        )


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, which may be wider; where it can, the product itself adds, without rounding before."""
    if has_mixed_addmm(total.device) and total.dtype == torch.float32 and a.dtype.itemsize == 2:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _cast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the operands in the dtype of matrix products."""
    dtype = matmul_dtype(weight)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _chunk_rows(weight: Tensor) -> int:
    """Return the rows whose logits are computed at a time."""
    return max(1, _LOGITS_PER_CHUNK // len(weight))


def _cross_entropy_(
    logits: Tensor, labels: Tensor, target_weight: float, smoothing_weight: float, gradient_scale: float
) -> Tensor:
    """Return each row's loss and overwrite `logits` with their gradients times `gradient_scale`."""
    if triton_available(logits):
        return kernels.cross_entropy_(logits, labels, target_weight, smoothing_weight, gradient_scale)
    is_valid = labels >= 0
    label = labels.clamp(min=0)[:, None]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    log_sum_exp = wide.logsumexp(1)
    losses = log_sum_exp - target_weight * wide.gather(1, label)[:, 0] - smoothing_weight * wide.sum(1)
    gradient = (wide - log_sum_exp[:, None]).exp_().sub_(smoothing_weight)
    gradient.scatter_add_(1, label, torch.full_like(label, -target_weight, dtype=gradient.dtype))
    logits.copy_(gradient * (is_valid * gradient_scale)[:, None])
    return losses * is_valid
