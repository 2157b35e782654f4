"""The Transformer (Vaswani et al. 2017) as MLPerf defines it (mlperf.md 12.5): pre-norm, one matrix for all words.

Sentences are packed (data.py). Shapes: S and T pieces of all sources and targets, D width, V vocabulary, N sentences.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...datasets.text.subwords import PAD
from ..common.nn.dropout import dropout
from ..common.translation.fused_linear_cross_entropy import product_dtype, vocabulary_loss
from .attention import attend
from .data import Packed, Pairs

_EPSILON = 1e-6


class Transformer(nn.Module):
    """Called with a batch, its summed loss; `encode` and the layers serve the search (decoder.py)."""

    def __init__(
        self, rows: int, width: int, heads: int, filter: int, layers: int, dropout: float, smoothing: float
    ) -> None:
        super().__init__()
        self.width, self.dropout, self.smoothing = width, dropout, smoothing
        self.embedding = nn.Parameter(torch.empty(rows, width))
        self.encoder = nn.ModuleList(Layer(width, heads, filter, dropout, decodes=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, filter, dropout, decodes=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width, _EPSILON), nn.LayerNorm(width, _EPSILON)
        self._initialise()

    def forward(self, batch: Pairs) -> Tensor:
        """Cross entropy with smoothed labels less its least value, summed over the target pieces."""
        target = batch.target
        memory = self.encode(batch.source)
        before = self.look_up(target.ids).roll(1, 0)
        x = self._with_position(torch.where(target.positions[:, None] == 0, 0.0, before), target.positions)
        for layer in self.decoder:
            x = layer(x, target, memory, batch.source)
        labels = torch.where(target.ids == PAD, -1, target.ids)
        words = len(self.embedding)
        sure, spread = 1 - self.smoothing, self.smoothing / (words - 1)
        least = -sure * math.log(sure) - (self.smoothing * math.log(spread) if self.smoothing else 0.0)
        x = self.decoder_norm(x)
        loss = vocabulary_loss(x, self.embedding, None, labels, lead=sure - spread, spread=spread)
        return loss - least * (labels >= 0).sum(dtype=loss.dtype)

    def encode(self, source: Packed) -> Tensor:
        """[S, D]: what the decoder looks at."""
        x = self._with_position(self.look_up(source.ids), source.positions)
        for layer in self.encoder:
            x = layer(x, source)
        return self.encoder_norm(x)

    def decoding_layers(self) -> list["Layer"]:
        """The decoder's."""
        return [layer for layer in self.decoder if isinstance(layer, Layer)]

    def look_up(self, ids: Tensor) -> Tensor:
        """Embeddings times the root of the width; padding is zero."""
        return torch.where((ids == PAD)[:, None], 0.0, F.embedding(ids, self.embedding) * self.width**0.5)

    def _with_position(self, x: Tensor, positions: Tensor) -> Tensor:
        """In the precision of the matrix products from here on: sums in it cost half the memory traffic of float32."""
        return dropout((x + self.signal(positions)).to(product_dtype(x)), self.dropout, self.training)

    def signal(self, positions: Tensor) -> Tensor:
        """[T, D]: sines, then cosines, of positions [T] at rates from 1 down to 1/10000, in geometric steps."""
        half = self.width // 2
        step = math.log(10000.0) / max(half - 1, 1)
        rates = torch.exp(torch.arange(half, device=positions.device, dtype=self.embedding.dtype) * -step)
        angles = positions[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    def _initialise(self) -> None:
        """Embeddings N(0, 1/D); matrices uniform with variance 1 / mean of both fans, each projection by itself."""
        nn.init.normal_(self.embedding, std=self.width**-0.5)
        for layer in [*self.encoder, *self.decoder]:
            for weight in layer.matrices():
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(layer.filter.bias)
            nn.init.zeros_(layer.back.bias)


class Layer(nn.Module):
    """Self-attention, attention to the source where it `decodes`, and a filter, each normalised before and added."""

    def __init__(self, width: int, heads: int, filter: int, dropout: float, *, decodes: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.decodes = heads, dropout, decodes
        self.attention_norm = nn.LayerNorm(width, _EPSILON)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        if decodes:
            self.cross_norm = nn.LayerNorm(width, _EPSILON)
            self.cross_q, self.cross_kv = (nn.Linear(width, times * width, bias=False) for times in (1, 2))
            self.cross_out = nn.Linear(width, width, bias=False)
        self.filter_norm = nn.LayerNorm(width, _EPSILON)
        self.filter, self.back = nn.Linear(width, filter), nn.Linear(filter, width)

    def forward(self, x: Tensor, own: Packed, memory: Tensor | None = None, source: Packed | None = None) -> Tensor:
        """[T, D] of x [T, D]; a decoding layer hides later pieces and looks at `memory` [S, D]."""
        dropout = self.dropout if self.training else 0.0
        three = self.by_head(self.qkv(self.attention_norm(x)), 3)
        mixed = attend(three, None, own, own, causal=self.decodes, dropout=dropout)
        x = x + self.drop(self.out(mixed.flatten(1)))
        if memory is not None and source is not None:
            query = self.by_head(self.cross_q(self.cross_norm(x)), 1)
            mixed = attend(query, self.by_head(self.cross_kv(memory), 2), own, source, causal=False, dropout=dropout)
            x = x + self.drop(self.cross_out(mixed.flatten(1)))
        return self.filtered(x)

    def filtered(self, x: Tensor) -> Tensor:
        """The last sublayer, of x [..., D]."""
        return x + self.drop(self.back(self.drop(F.relu(self.filter(self.filter_norm(x))))))

    def by_head(self, x: Tensor, parts: int) -> Tensor:
        """[T, parts, heads, D / heads] of x [T, parts * D]."""
        return x.unflatten(-1, (parts, self.heads, -1))

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training."""
        return dropout(x, self.dropout, self.training)

    def matrices(self) -> list[Tensor]:
        """Every projection by itself, as the reference draws them."""
        fused = [self.qkv.weight, *([self.cross_kv.weight] if self.decodes else [])]
        width = self.out.in_features
        own = [self.out.weight, self.filter.weight, self.back.weight]
        if self.decodes:
            own += [self.cross_q.weight, self.cross_out.weight]
        return [part for weight in fused for part in weight.detach().split(width)] + [weight.detach() for weight in own]
