"""Attention between packed sentences: each token attends to its own sentence, or to the source of that sentence."""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import kernels
from .data import PackedSentences


def packed_attention(
    q_or_qkv: Tensor,
    kv: Tensor | None,
    queries: PackedSentences,
    keys: PackedSentences,
    *,
    causal: bool,
    dropout: float,
) -> Tensor:
    """Return scaled dot-product attention within sentences: [T, heads, D].

    For self-attention `q_or_qkv` [T, 3, heads, D] holds queries, keys and values, and `kv` is None. For cross-attention
    it holds the queries [T, 1, heads, D], and `kv` [S, 2, heads, D] the keys and values. `dropout` applies to the
    attention weights; `causal` masks later tokens.
    """
    if kernels.is_supported(q_or_qkv):
        return kernels.attention(
            q_or_qkv,
            kv,
            queries.sentence_ids,
            keys.sentence_ids,
            queries.cu_seqlens,
            keys.cu_seqlens,
            max_seqlen=max(queries.max_seqlen, keys.max_seqlen),
            causal=causal,
            dropout=dropout,
        )
    count = len(queries.cu_seqlens) - 1
    q = pad(q_or_qkv[:, 0], queries, count)
    k, v = (pad((q_or_qkv if kv is None else kv)[:, part], keys, count) for part in (-2, -1))
    mask = pad(torch.ones_like(keys.ids[:, None], dtype=torch.bool), keys, count)[:, None, None, :, 0]
    if causal:
        mask = mask & torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out.transpose(1, 2)[queries.sentence_ids, queries.positions]


def pad(x: Tensor, sentences: PackedSentences, count: int) -> Tensor:
    """Return packed x [T, ...] as [count, max_seqlen, ...], padded with zeros."""
    padded = x.new_zeros(count, sentences.max_seqlen, *x.shape[1:])
    return padded.index_put((sentences.sentence_ids, sentences.positions), x)
