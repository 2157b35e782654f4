"""What NeuMF computes beside matrix products: sums of the gradients of looked-up rows."""

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_sum(values: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
    """fp32 [N, D] (fp64 for fp64): out[n] = sum of values[order[starts[n]:starts[n+1]]]; order None is the identity."""
    values = values.float() if values.dtype != torch.float64 else values
    if order is None:
        order = torch.arange(values.shape[0], dtype=starts.dtype, device=values.device)
    return F.embedding_bag(order, values, starts, mode="sum", include_last_offset=True)
