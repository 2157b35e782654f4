"""Attention between packed sentences: every piece sees the pieces of its own sentence, or of that sentence's source."""

import torch
from torch import Tensor
from torch.nn import functional as F

from timetrial.workloads.transformer.data import Packed


def attend(
    query: Tensor, key: Tensor, value: Tensor, asking: Packed, seen: Packed, *, causal: bool, dropout: float
) -> Tensor:
    """[Tq, heads, D] of query [Tq, heads, D] over key and value [Tk, heads, D]; `causal` hides what comes later.

    Scores are divided by the square root of D; dropout falls on the weights.
    """
    if _has_kernel(query):
        return torch.ops.aten._flash_attention_forward(
            query, key, value, asking.bounds, seen.bounds, asking.longest, seen.longest, dropout, causal, False
        )[0]
    count = len(asking.bounds) - 1
    q = padded(query, asking, count)
    k, v = (padded(side, seen, count) for side in (key, value))
    exists = padded(torch.ones_like(key[:, :1, :1], dtype=torch.bool), seen, count)[..., 0].transpose(1, 2)[:, :, None]
    if causal:
        exists = exists & torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    q, k, v = (side.transpose(1, 2) for side in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=exists, dropout_p=dropout)
    return mixed.transpose(1, 2)[asking.sentences, asking.positions]


def _has_kernel(query: Tensor) -> bool:
    """Whether PyTorch's kernel for packed sentences runs here: half precision on an NVIDIA card since Ampere."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and torch.version.hip is None
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def padded(x: Tensor, side: Packed, count: int) -> Tensor:
    """[count, longest, ...] of packed x [T, ...], zero where nothing is."""
    padded = x.new_zeros(count, side.longest, *x.shape[1:])
    return padded.index_put((side.sentences, side.positions), x)
