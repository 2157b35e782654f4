"""The Transformer in the middle of a search: keys and values of what has been said are kept.

Shapes: N sentences, K hypotheses of each, R = N * K rows, s the longest source, D the width of a head.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from timetrial.workloads.transformer.attention import padded
from timetrial.workloads.transformer.data import Packed
from timetrial.workloads.transformer.model import Layer, Transformer


class Decoder:
    """R hypotheses over N encoded sentences; the first piece of all is the zero vector, whatever its id."""

    def __init__(self, model: Transformer, source: Packed) -> None:
        count = len(source.bounds) - 1
        memory = model.encode(source)
        ones = torch.ones(len(memory), 1, dtype=torch.bool, device=memory.device)
        self._model, self._count, self._position = model, count, 0
        self._exists = padded(ones, source, count)[:, None, None, :, 0]  # [N, 1, 1, s]
        self._seen = [
            self._sides(layer, memory, source) for layer in model.decoding_layers()
        ]  # keys, values [N, heads, s, D]
        self._said: list[tuple[Tensor, Tensor]] = []  # the same of what was said: [R, heads, t, D]

    def step(self, ids: Tensor) -> tuple[Tensor, None]:
        """Logits [R, V] after one more piece `ids` [R]."""
        model = self._model
        signal = model.signal(torch.full_like(ids, self._position))
        x = signal if self._position == 0 else model.look_up(ids) + signal
        said = []
        for number, layer in enumerate(model.decoding_layers()):
            q, k, v = layer.by_head(layer.qkv(layer.attention_norm(x)), 3)[..., None, :].unbind(1)
            if self._said:
                k, v = (torch.cat(both, 2) for both in zip(self._said[number], (k, v), strict=True))
            said.append((k, v))
            x = x + layer.out(F.scaled_dot_product_attention(q, k, v).flatten(1))
            q = layer.by_head(layer.cross_q(layer.cross_norm(x)), 1)[:, 0]
            q = q.unflatten(0, (self._count, -1)).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(q, *self._seen[number], attn_mask=self._exists)
            x = layer.filtered(x + layer.cross_out(mixed.transpose(1, 2).flatten(0, 1).flatten(1)))
        self._said, self._position = said, self._position + 1
        return F.linear(model.decoder_norm(x), model.embedding), None

    def keep(self, rows: Tensor) -> None:
        """Row r becomes what row `rows`[r] was."""
        self._said = [(keys[rows], values[rows]) for keys, values in self._said]

    def _sides(self, layer: Layer, memory: Tensor, source: Packed) -> tuple[Tensor, Tensor]:
        keys, values = layer.by_head(layer.cross_kv(memory), 2).unbind(1)
        return (
            padded(keys, source, self._count).transpose(1, 2),
            padded(values, source, self._count).transpose(1, 2),
        )
