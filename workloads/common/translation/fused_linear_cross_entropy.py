"""Cross entropy over a large vocabulary without keeping its logits: projection, loss and gradients, rows by rows."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nn import triton_support

_AT_ONCE = 1 << 29  # logits: a gigabyte in 16 bits
_LIFT = 16.0  # gradients of fp16 logits are that much larger on their way: a word's probability is below its range


def product_dtype(x: Tensor) -> torch.dtype:
    """In which precision matrix products with x are made: that of autocast, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


@torch.compiler.disable
def vocabulary_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, lead: float, spread: float
) -> Tensor:
    """Sum over rows of -sum_v q_v log p_v, with p the softmax of hidden [T, H] @ weight [V, H].T + bias [V].

    q is `spread` for every word and `lead` more for the label, 1 in all; rows whose label is below 0 count nothing.
    """
    return _VocabularyLoss.apply(hidden, weight, bias, labels, lead, spread)


class _VocabularyLoss(torch.autograd.Function):
    """Gradients are made with the loss: only their product with the incoming one is left for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, lead: float, spread: float
    ) -> Tensor:
        dtype = product_dtype(weight)
        with torch.autocast(hidden.device.type, enabled=False):
            low, matrix = hidden.to(dtype), weight.to(dtype)
            offset = None if bias is None else bias.to(dtype)
            lift = _LIFT if dtype == torch.float16 else 1.0
            total = torch.zeros((), dtype=torch.float32 if dtype.itemsize < 4 else dtype, device=hidden.device)
            for_hidden, for_weight = torch.empty_like(low), torch.zeros_like(weight)
            for_bias = None if bias is None else torch.zeros_like(bias)
            rows = max(1, _AT_ONCE // len(weight))
            for start in range(0, len(low), rows):
                some = slice(start, start + rows)
                logits = F.linear(low[some], matrix, offset)
                total += _entropy_(logits, labels[some], lead, spread, lift).sum()
                torch.mm(logits, matrix, out=for_hidden[some])
                for_weight += logits.T @ low[some]
                if for_bias is not None:
                    for_bias += logits.sum(0, dtype=for_bias.dtype)
        ctx.lift = lift
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(for_hidden, for_weight, for_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        for_hidden, for_weight, for_bias = ctx.saved_tensors
        scale = gradients[0] / ctx.lift
        return (
            (for_hidden * scale).to(ctx.dtype),
            for_weight * scale,
            None if for_bias is None else for_bias * scale,
            None,
            None,
            None,
        )


def _entropy_(logits: Tensor, labels: Tensor, lead: float, spread: float, lift: float) -> Tensor:
    """Each row's loss; `logits` become their gradients times `lift`."""
    if triton_support.available(logits):
        return triton_support.cross_entropy_(logits, labels, lead, spread, lift)
    counts = labels >= 0
    label = labels.clamp(min=0)[:, None]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    log_mass = wide.logsumexp(1)
    losses = log_mass - lead * wide.gather(1, label)[:, 0] - spread * wide.sum(1)
    gradient = (wide - log_mass[:, None]).exp_().sub_(spread)
    gradient.scatter_add_(1, label, torch.full_like(label, -lead, dtype=gradient.dtype))
    logits.copy_(gradient * (counts * lift)[:, None])
    return losses * counts
