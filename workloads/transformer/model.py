"""The Transformer (Vaswani et al. 2017) as in docs/mlperf_rules.md, "Transformer": pre-norm, one embedding for all.

Sentences are packed (data.py). Shapes: S and T tokens of all sources and targets, D hidden size, V vocabulary, N
sentences.
"""

import functools
import math
from collections.abc import Callable, Sequence
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
_LAYERS_PER_GRAPH = 3  # layers compiled into one graph


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
        self._compiled: tuple[Callable[..., Tensor], Callable[..., Tensor]] | None = None
        self._initialize()

    def forward(self, batch: PackedPairs) -> Tensor:
        """Return the label-smoothed cross entropy minus its smallest possible value, summed over the target tokens."""
        encode_part, decode_part = self._compiled or (self._encode_part, self._decode_part)
        memory = _in_parts(encode_part, self.encoder, batch.source)
        return _in_parts(decode_part, self.decoder, batch, memory)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile encoder and decoder in parts of `_LAYERS_PER_GRAPH` layers.

        The compiled backward pass of a part yields all of its gradients at its end. They are then exchanged between
        GPUs during the backward pass of the part before it.
        """
        self._compiled = (
            torch.compile(self._encode_part, *args, **options),
            torch.compile(self._decode_part, *args, **options),
        )

    def encode(self, source: PackedSentences) -> Tensor:
        """Return the encoder output [S, D]."""
        return _in_parts(self._encode_part, self.encoder, source)

    def _encode_part(
        self, x: Tensor | None, layers: Sequence[nn.Module], is_last: bool, source: PackedSentences
    ) -> Tensor:
        """Apply some layers to x [S, D], which is None for the first of them; the last ones return the output."""
        if x is None:
            x = self._add_position(self.embed(source.ids), source.positions)
        for layer in layers:
            x = layer(x, source)
        return self.encoder_norm(x) if is_last else x

    def _decode_part(
        self, x: Tensor | None, layers: Sequence[nn.Module], is_last: bool, batch: PackedPairs, memory: Tensor
    ) -> Tensor:
        """Apply some layers to x [T, D], which is None for the first of them; the last ones return the loss."""
        target = batch.target
        if x is None:
            shifted = self.embed(target.ids).roll(1, 0)
            x = self._add_position(torch.where(target.positions[:, None] == 0, 0.0, shifted), target.positions)
        for layer in layers:
            x = layer(x, target, memory, batch.source)
        return self._loss(x, target.ids) if is_last else x

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


def _in_parts(run: Callable[..., Tensor], layers: nn.ModuleList, *inputs: Any) -> Tensor:
    """Return the result of a stack of layers, of which `run` applies a part at a time."""
    x: Any = None
    for start in range(0, len(layers), _LAYERS_PER_GRAPH):
        stop = start + _LAYERS_PER_GRAPH
        x = run(x, list(layers[start:stop]), stop >= len(layers), *inputs)
    return x
