"""Linear projection and cross entropy over a large vocabulary in one function that does not keep the logits.

Shapes: T rows, H hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....runner.hardware.devices import has_mixed_addmm
from ....runner.training.eager import keep_eager
from ..nn.autocast import matmul_dtype
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

    q is `smoothing_weight` for every word plus `target_weight` for the label; it must sum to 1 (Szegedy et al. 2015,
    arXiv:1512.00567, section 7). Rows with a negative label are ignored; `labels` are int64 [T]. The loss is float32,
    or float64 for such weights; products have the dtype of autocast.
    """
    if torch.is_grad_enabled():
        return _FusedLinearCrossEntropy.apply(hidden, weight, bias, labels, target_weight, smoothing_weight)
    x, w, b = _cast(hidden, weight, bias)
    with torch.autocast(hidden.device.type, enabled=False):
        rows = _chunk_rows(weight)
        losses = [
            _cross_entropy_(F.linear(part, w, b), part_labels, target_weight, smoothing_weight, 1.0)
            for part, part_labels in zip(x.split(rows), labels.split(rows), strict=True)
        ]
    return torch.cat(losses).sum()


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """loss = sum_t (lse(z_t) - q_t . z_t), where z = x w^T + b.

    dz = softmax(z) - q, dx = dz w, dw = dz^T x, db = sum_t dz_t. The forward pass computes the gradients too;
    the backward pass multiplies them by the incoming gradient.
    """

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
        x, w, b = _cast(hidden, weight, bias)
        with torch.autocast(hidden.device.type, enabled=False):
            gradient_scale = _FP16_GRADIENT_SCALE if w.dtype == torch.float16 else 1.0
            loss = torch.zeros((), dtype=torch.float32 if w.dtype.itemsize < 4 else w.dtype, device=hidden.device)
            dx, dw = torch.empty_like(x), torch.zeros_like(weight)
            db = None if bias is None else torch.zeros_like(bias)
            chunk_rows = _chunk_rows(weight)
            for start in range(0, len(x), chunk_rows):
                chunk = slice(start, start + chunk_rows)
                logits = F.linear(x[chunk], w, b)
                loss += _cross_entropy_(logits, labels[chunk], target_weight, smoothing_weight, gradient_scale).sum()
                dlogits = logits  # overwritten
                torch.mm(dlogits, w, out=dx[chunk])
                _add_product_(dw, dlogits.T, x[chunk])
                if db is not None:
                    db += dlogits.sum(0, dtype=db.dtype)
        ctx.gradient_scale = gradient_scale
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(dx, dw, db)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw, db = ctx.saved_tensors
        scale = dloss / ctx.gradient_scale
        return (dx * scale).to(ctx.dtype), dw * scale, None if db is None else db * scale, None, None, None


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
