"""The Transformer (Vaswani et al. 2017) as in docs/mlperf_rules.md, "Transformer": pre-norm, one embedding for all.

Sentences are packed (data.py). Shapes: S and T tokens of all sources and targets, D hidden size, V vocabulary, N
sentences.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...datasets.text.subwords import PAD
from ..common.nn.autocast import matmul_dtype
from ..common.nn.dropout import dropout, relu_dropout
from ..common.translation.fused_linear_cross_entropy import fused_linear_cross_entropy
from .attention import packed_attention
from .data import PackedPairs, PackedSentences

_NORM_EPSILON = 1e-6
_LAYERS_PER_GRAPH = 3  # layers compiled into one graph, at most


class Transformer(nn.Module):
    """Maps a batch to its summed loss; `encode` and the decoder layers serve the beam search (decoder.py)."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        num_heads: int,
        ffn_dim: int,
        num_layers: int,
        dropout: float,
        label_smoothing: float,
    ) -> None:
        super().__init__()
        self.hidden_size, self.label_smoothing = hidden_size, label_smoothing
        self.dropout = dropout
        self.embedding = nn.Parameter(torch.empty(vocab_size, hidden_size))
        sizes = (hidden_size, num_heads, ffn_dim, dropout)
        # In the order of the forward pass: gradients are exchanged in the reverse order (gradient_reduction.py).
        self.encoder = nn.ModuleList(Layer(*sizes, cross_attention=False) for _ in range(num_layers))
        self.encoder_norm = nn.LayerNorm(hidden_size, _NORM_EPSILON)
        self.decoder = nn.ModuleList(Layer(*sizes, cross_attention=True) for _ in range(num_layers))
        self.decoder_norm = nn.LayerNorm(hidden_size, _NORM_EPSILON)
        self._compiled: tuple[Callable[..., Any], ...] | None = None
        self._initialize()

    def forward(self, batch: PackedPairs) -> Tensor:
        """Return the label-smoothed cross entropy minus its smallest possible value, summed over the target tokens."""
        start_encoder, start_decoder, run_layers, loss = self._compiled or self._parts
        x = start_encoder(batch.source)
        for layers in _in_groups(self.encoder):
            x = run_layers(layers, x, batch.source)
        memory, x = start_decoder(x, batch.target)
        for layers in _in_groups(self.decoder):
            x = run_layers(layers, x, batch.target, memory, batch.source)
        return loss(x, batch.target.ids)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the model in parts; groups of up to `_LAYERS_PER_GRAPH` layers of a kind share one graph.

        The compiled backward pass of a part yields all of its gradients at its end. Over slow links they are then
        exchanged between GPUs during the backward pass of the part before it.
        """
        self._compiled = tuple(torch.compile(part, *args, **options) for part in self._parts)

    @property
    def _parts(self) -> tuple[Callable[..., Any], ...]:
        return self._start_encoder, self._start_decoder, _run_layers, self._loss

    def encode(self, source: PackedSentences) -> Tensor:
        """Return the encoder output [S, D]."""
        x = _run_layers(self.encoder, self._start_encoder(source), source)
        return self.encoder_norm(x)

    def _start_encoder(self, source: PackedSentences) -> Tensor:
        """Return the input of the first layer [S, D]."""
        return self._add_position(self.embed(source.ids), source.positions)

    def _start_decoder(self, x: Tensor, target: PackedSentences) -> tuple[Tensor, Tensor]:
        """Return the encoder output, of x [S, D] from its last layer, and the input of the first layer [T, D].

        Both are in one part, which saves a graph.
        """
        shifted = self.embed(target.ids).roll(1, 0)
        inputs = self._add_position(torch.where(target.positions[:, None] == 0, 0.0, shifted), target.positions)
        return self.encoder_norm(x), inputs

    def _loss(self, x: Tensor, ids: Tensor) -> Tensor:
        """Return the loss, as `forward` does, of the output x [T, D] of the last layer."""
        labels = torch.where(ids == PAD, -1, ids)
        confidence, smoothing_weight = 1 - self.label_smoothing, self.label_smoothing / (len(self.embedding) - 1)
        entropy = -confidence * math.log(confidence)
        if self.label_smoothing:
            entropy -= self.label_smoothing * math.log(smoothing_weight)
        loss = fused_linear_cross_entropy(
            self.decoder_norm(x),
            self.embedding,
            None,
            labels,
            target_weight=confidence - smoothing_weight,
            smoothing_weight=smoothing_weight,
        )
        return loss - entropy * (labels >= 0).sum(dtype=loss.dtype)

    def decoder_layers(self) -> list["Layer"]:
        """Return the layers of the decoder."""
        return [layer for layer in self.decoder if isinstance(layer, Layer)]

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings times sqrt(hidden_size); padding is zero."""
        return torch.where((ids == PAD)[:, None], 0.0, F.embedding(ids, self.embedding) * self.hidden_size**0.5)

    def positional_encoding(self, positions: Tensor) -> Tensor:
        """Return [T, D]: sines, then cosines, of `positions` [T] at rates that fall geometrically from 1 to 1/10000."""
        half = self.hidden_size // 2
        step = math.log(10000.0) / max(half - 1, 1)
        rates = torch.exp(torch.arange(half, device=positions.device, dtype=self.embedding.dtype) * -step)
        angles = positions[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    def _add_position(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add the positional encoding; the result has the dtype of matrix products, which halves memory traffic."""
        x = (x + self.positional_encoding(positions)).to(matmul_dtype(x))
        return dropout(x, self.dropout, self.training)

    def _initialize(self) -> None:
        """Draw embeddings from N(0, 1/D) and each projection from a Xavier uniform distribution of its own."""
        nn.init.normal_(self.embedding, std=self.hidden_size**-0.5)
        for layer in [*self.encoder, *self.decoder]:
            for weight in layer.projections():
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(layer.ffn_up.bias)
            nn.init.zeros_(layer.ffn_down.bias)


class Layer(nn.Module):
    """Self-attention, optional cross-attention and feed-forward network, each with pre-norm and residual connection."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        ffn_dim: int,
        dropout: float,
        *,
        cross_attention: bool,
    ) -> None:
        super().__init__()
        self.num_heads, self.cross_attention = num_heads, cross_attention
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(hidden_size, _NORM_EPSILON)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        if cross_attention:
            self.cross_norm = nn.LayerNorm(hidden_size, _NORM_EPSILON)
            self.cross_q = nn.Linear(hidden_size, hidden_size, bias=False)
            self.cross_kv = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
            self.cross_out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.ffn_norm = nn.LayerNorm(hidden_size, _NORM_EPSILON)
        self.ffn_up, self.ffn_down = nn.Linear(hidden_size, ffn_dim), nn.Linear(ffn_dim, hidden_size)

    def forward(
        self,
        x: Tensor,
        sentences: PackedSentences,
        memory: Tensor | None = None,
        source: PackedSentences | None = None,
    ) -> Tensor:
        """Apply the layer to x [T, D]; with cross-attention it is causal and attends to `memory` [S, D] too."""
        attend = functools.partial(packed_attention, dropout=self.dropout if self.training else 0.0)
        qkv = self.split_heads(self.qkv(self.attention_norm(x)), 3)
        attended = attend(qkv, None, sentences, sentences, causal=self.cross_attention)
        x = x + self._dropout(self.out(attended.flatten(1)))
        if memory is not None and source is not None:
            q = self.split_heads(self.cross_q(self.cross_norm(x)), 1)
            kv = self.split_heads(self.cross_kv(memory), 2)
            attended = attend(q, kv, sentences, source, causal=False)
            x = x + self._dropout(self.cross_out(attended.flatten(1)))
        return self.feed_forward(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward sublayer to x [..., D]."""
        return x + self._dropout(
            self.ffn_down(relu_dropout(self.ffn_up(self.ffn_norm(x)), self.dropout, self.training))
        )

    def split_heads(self, x: Tensor, parts: int) -> Tensor:
        """Return x [T, parts * D] as [T, parts, heads, D / heads]."""
        return x.unflatten(-1, (parts, self.num_heads, -1))

    def projections(self) -> list[Tensor]:
        """Return every projection matrix; fused ones are split as in the reference, which draws each separately."""
        fused = [self.qkv.weight, *([self.cross_kv.weight] if self.cross_attention else [])]
        single = [self.out.weight, self.ffn_up.weight, self.ffn_down.weight]
        if self.cross_attention:
            single += [self.cross_q.weight, self.cross_out.weight]
        hidden_size = self.out.in_features
        split = [part for weight in fused for part in weight.detach().split(hidden_size)]
        return split + [weight.detach() for weight in single]

    def _dropout(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


def _run_layers(layers: Iterable[nn.Module], x: Tensor, *inputs: Any) -> Tensor:
    for layer in layers:
        x = layer(x, *inputs)
    return x


def _in_groups(layers: nn.ModuleList) -> list[list[nn.Module]]:
    """Return the layers in groups of equal size, which are compiled together and share one graph."""
    size = max(size for size in range(1, _LAYERS_PER_GRAPH + 1) if len(layers) % size == 0)
    return [list(layers[start : start + size]) for start in range(0, len(layers), size)]
