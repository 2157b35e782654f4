"""Incremental decoding with the Transformer: keys and values of earlier tokens are cached.

Shapes: N sentences, K hypotheses per sentence, R = N * K rows, s tokens of the longest source, D head size, t tokens
decoded so far.
"""

import copy

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention import pad
from .data import PackedSentences
from .model import Layer, Transformer

_CACHE_STEP = 32  # tokens that a cache grows by; few sizes, since an allocation takes longer than a decoding step
# cuDNN is left out: it builds a new execution plan for each length, and the length grows with every step.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class TransformerDecoder:
    """The Transformer with the decoding state of R hypotheses; the embedding of the first input is always zero."""

    def __init__(self, model: Transformer, source: PackedSentences) -> None:
        count = len(source.cu_seqlens) - 1
        memory = model.encode(source)
        ones = torch.ones(len(memory), 1, dtype=torch.bool, device=memory.device)
        self._model, self._count, self._position = model, count, 0
        self._source_mask = pad(ones, source, count)[:, None, None, :, 0]  # [N, 1, 1, s]
        # Keys and values of the source for each layer, [N, heads, s, D] each.
        self._cross_kv = [self._project_memory(layer, memory, source) for layer in model.decoder_layers()]
        self._caches = [_KVCache() for _ in self._cross_kv]

    @sdpa_kernel(_BACKENDS)
    def step(self, ids: Tensor) -> tuple[Tensor, None]:
        """Return the logits [R, V] after the tokens `ids` [R]."""
        model = self._model
        encoding = model.positional_encoding(torch.full_like(ids, self._position))
        x = encoding if self._position == 0 else model.embed(ids) + encoding
        for number, layer in enumerate(model.decoder_layers()):
            q, k, v = layer.split_heads(layer.qkv(layer.attention_norm(x)), 3).unbind(1)
            keys, values = self._caches[number].append(k, v, self._position)
            x = x + layer.out(F.scaled_dot_product_attention(q[:, :, None], keys, values).flatten(1))
            q = layer.split_heads(layer.cross_q(layer.cross_norm(x)), 1)[:, 0]
            q = q.unflatten(0, (self._count, -1)).transpose(1, 2)
            cross = F.scaled_dot_product_attention(q, *self._cross_kv[number], attn_mask=self._source_mask)
            x = layer.feed_forward(x + layer.cross_out(cross.transpose(1, 2).flatten(0, 1).flatten(1)))
        self._position += 1
        return F.linear(model.decoder_norm(x), model.embedding), None

    def fork(self) -> "TransformerDecoder":
        """Return a decoder that goes on from this state, in the same buffers."""
        forked = copy.copy(self)
        forked._caches = [copy.copy(cache) for cache in self._caches]
        return forked

    def reorder(self, rows: Tensor) -> None:
        """Replace the state of each row r with that of row `rows[r]`."""
        cached = 2 * self._position
        index = torch.arange(cached, device=rows.device)[:, None] * len(rows) + rows
        for cache in self._caches:
            cache.reorder(index.flatten(), self._position)

    def _project_memory(self, layer: Layer, memory: Tensor, source: PackedSentences) -> tuple[Tensor, Tensor]:
        keys, values = layer.split_heads(layer.cross_kv(memory), 2).unbind(1)
        return (
            pad(keys, source, self._count).transpose(1, 2),
            pad(values, source, self._count).transpose(1, 2),
        )


class _KVCache:
    """Keys and values of one layer: a buffer [at least t, 2, R, heads, D], and a second one to reorder into."""

    def __init__(self) -> None:
        self._buffer = self._spare = torch.empty(0)

    def append(self, keys: Tensor, values: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Store keys and values [R, heads, D] of `position`; return all of them, [R, heads, position + 1, D] each."""
        if position == len(self._buffer):
            larger = keys.new_empty(position + _CACHE_STEP, 2, *keys.shape)
            if position:
                larger[:position] = self._buffer
            self._buffer, self._spare = larger, torch.empty_like(larger)
        self._buffer[position, 0], self._buffer[position, 1] = keys, values
        keys, values = self._buffer[: position + 1].permute(1, 2, 3, 0, 4)
        return keys, values

    def reorder(self, index: Tensor, length: int) -> None:
        """Reorder the first `length` positions; `index` are rows of the buffer seen as [length * 2 * R, heads * D]."""
        source, target = (buffer[:length].flatten(0, 2).flatten(1) for buffer in (self._buffer, self._spare))
        torch.index_select(source, 0, index, out=target)
        self._buffer, self._spare = self._spare, self._buffer
