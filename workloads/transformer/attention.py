"""Attention between packed sentences: every piece sees the pieces of its own sentence, or of that sentence's source."""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import kernels
from .data import Packed


def attend(own: Tensor, seen: Tensor | None, asking: Packed, source: Packed, *, causal: bool, dropout: float) -> Tensor:
    """[T, heads, D] from `own` [T, 3, heads, D], queries, keys and values; or from queries [T, 1, heads, D] alone.

    In the latter case `seen` [S, 2, heads, D] holds the keys and values of the `source`. Scores are divided by the
    square root of D; dropout falls on the weights; `causal` hides what comes later.
    """
    if kernels.fits(own):
        places = (asking.sentences, source.sentences, asking.bounds, source.bounds)
        return kernels.attention(own, seen, *places, causal=causal, dropout=dropout)
    count = len(asking.bounds) - 1
    q = padded(own[:, 0], asking, count)
    k, v = (padded((own if seen is None else seen)[:, part], source, count) for part in (-2, -1))
    exists = padded(torch.ones_like(source.ids[:, None], dtype=torch.bool), source, count)[:, None, None, :, 0]
    if causal:
        exists = exists & torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    q, k, v = (side.transpose(1, 2) for side in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=exists, dropout_p=dropout)
    return mixed.transpose(1, 2)[asking.sentences, asking.positions]


def padded(x: Tensor, side: Packed, count: int) -> Tensor:
    """[count, longest, ...] of packed x [T, ...], zero where nothing is."""
    room = x.new_zeros(count, side.longest, *x.shape[1:])
    return room.index_put((side.sentences, side.positions), x)
