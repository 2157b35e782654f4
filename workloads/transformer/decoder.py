"""The Transformer in the middle of a search: keys and values of what has been said are kept.

Shapes: N sentences, K hypotheses of each, R = N * K rows, s the longest source, D the width of a head, t what was said.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention import padded
from .data import Packed
from .model import Layer, Transformer

_ROOM = 32  # pieces: memory is asked for so many at a time, in few sizes, since asking takes longer than a step
# What is said grows by a piece a step: the backend left out here plans anew for each length, which takes longer still.
_ANY_LENGTH = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


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
        self._said = [_Said() for _ in self._seen]

    @sdpa_kernel(_ANY_LENGTH)
    def step(self, ids: Tensor) -> tuple[Tensor, None]:
        """Logits [R, V] after one more piece `ids` [R]."""
        model = self._model
        signal = model.signal(torch.full_like(ids, self._position))
        x = signal if self._position == 0 else model.look_up(ids) + signal
        for number, layer in enumerate(model.decoding_layers()):
            q, k, v = layer.by_head(layer.qkv(layer.attention_norm(x)), 3).unbind(1)
            keys, values = self._said[number].with_next(k, v, self._position)
            x = x + layer.out(F.scaled_dot_product_attention(q[:, :, None], keys, values).flatten(1))
            q = layer.by_head(layer.cross_q(layer.cross_norm(x)), 1)[:, 0]
            q = q.unflatten(0, (self._count, -1)).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(q, *self._seen[number], attn_mask=self._exists)
            x = layer.filtered(x + layer.cross_out(mixed.transpose(1, 2).flatten(0, 1).flatten(1)))
        self._position += 1
        return F.linear(model.decoder_norm(x), model.embedding), None

    def keep(self, rows: Tensor) -> None:
        """Row r becomes what row `rows`[r] was."""
        sides = 2 * self._position
        index = torch.arange(sides, device=rows.device)[:, None] * len(rows) + rows
        for said in self._said:
            said.keep(index.flatten(), self._position)

    def _sides(self, layer: Layer, memory: Tensor, source: Packed) -> tuple[Tensor, Tensor]:
        keys, values = layer.by_head(layer.cross_kv(memory), 2).unbind(1)
        return (
            padded(keys, source, self._count).transpose(1, 2),
            padded(values, source, self._count).transpose(1, 2),
        )


class _Said:
    """Keys and values that one layer said: a room [at least t, 2, R, heads, D], and another to sort them into."""

    def __init__(self) -> None:
        self._room = self._other = torch.empty(0)

    def with_next(self, keys: Tensor, values: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """All keys and values [R, heads, position + 1, D] with those [R, heads, D] of `position`."""
        if position == len(self._room):
            larger = keys.new_empty(position + _ROOM, 2, *keys.shape)
            if position:
                larger[:position] = self._room
            self._room, self._other = larger, torch.empty_like(larger)
        self._room[position, 0], self._room[position, 1] = keys, values
        keys, values = self._room[: position + 1].permute(1, 2, 3, 0, 4)
        return keys, values

    def keep(self, index: Tensor, count: int) -> None:
        """Sorts the first `count` pieces: `index` are rows of the room as if [count * 2 * R, heads * D]."""
        source, target = (room[:count].flatten(0, 2).flatten(1) for room in (self._room, self._other))
        torch.index_select(source, 0, index, out=target)
        self._room, self._other = self._other, self._room
