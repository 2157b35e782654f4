"""GNMT (Wu et al. 2016) as MLPerf defines it (mlperf.md 12.4): four LSTM layers a side, attention after the first.

Sentences are packed (data.py): nothing is computed for padding but within the attention, whose scores and contexts are
padded to the longest sentence of the batch. Shapes: N sentences, H width, V vocabulary, S and T pieces of all sources
and targets, s and t the longest source and target.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.translation.fused_linear_cross_entropy import product_dtype, vocabulary_loss
from . import kernels
from .data import Packed, Pairs
from .lstm import packed_lstm

_REACH = 0.1  # of the uniform distribution that weights start from
_AT_ONCE = 1 << 24  # values that attention keeps apart by unit where no kernel sums them
State = list[tuple[Tensor, Tensor]]  # of the decoder's layers: hidden and cell, [1, R, H] each


class Memory(NamedTuple):
    """What the decoder looks at: encoder outputs [N, s, H], keys [N, s, H], how many exist [N], which [N, s]."""

    outputs: Tensor
    keys: Tensor
    lengths: Tensor
    exists: Tensor


class GNMT(nn.Module):
    """Called with a batch, its summed loss; `encode` and `decode` serve the search."""

    def __init__(self, rows: int, width: int, dropout: float, smoothing: float) -> None:
        super().__init__()
        self.dropout, self.smoothing = dropout, smoothing
        self.embedding = nn.Embedding(rows, width)
        first: nn.Module = nn.ModuleDict({"ahead": nn.LSTM(width, width), "back": nn.LSTM(width, width)})
        upper = [nn.LSTM(2 * width, width), nn.LSTM(width, width), nn.LSTM(width, width)]
        self.encoder = nn.ModuleList([first, *upper])
        self.decoder = nn.ModuleList([nn.LSTM(width, width), *(nn.LSTM(2 * width, width) for _ in range(3))])
        self.attention = Attention(width)
        self.classifier = nn.Linear(width, rows)
        self._initialise()

    def forward(self, batch: Pairs) -> Tensor:
        """Cross entropy with smoothed labels, summed over all target pieces."""
        heard, spoken = batch.lengths
        memory = self.encode(batch.source, heard)
        x = self._drop(self._look_up(batch.target.ids))
        x = self._lstm(self.decoder[0], x, batch.target)
        context = self._contexts(x, batch.target, spoken, memory)
        for number, layer in enumerate(list(self.decoder)[1:]):
            y = self._lstm(layer, self._drop(torch.cat([x, context], 1)), batch.target)
            x = y + x if number else y
        words = self.classifier.out_features
        spread = self.smoothing / words
        weight, bias = self.classifier.weight, self.classifier.bias
        return vocabulary_loss(x, weight, bias, batch.labels, lead=1 - self.smoothing, spread=spread)

    def encode(self, source: Packed, lengths: Tensor) -> Memory:
        """What the decoder looks at; `lengths` [N] fall."""
        x = self._drop(self._look_up(source.ids))
        first = dict(self.encoder[0].named_children())
        backward = _reversed(source.places, lengths, source.longest)
        ahead = self._lstm(first["ahead"], x, source)
        back = self._lstm(first["back"], x[backward], source)[backward]
        x = self._lstm(self.encoder[1], self._drop(torch.cat([ahead, back], 1)), source)
        for layer in list(self.encoder)[2:]:
            x = self._lstm(layer, self._drop(x), source) + x
        outputs = _padded(x, source.places, len(lengths), source.longest)
        exists = torch.arange(source.longest, device=lengths.device) < lengths[:, None]
        return Memory(outputs, self.attention.key(outputs), lengths, exists)

    def decode(self, ids: Tensor, state: State | None, memory: Memory) -> tuple[Tensor, State, Tensor]:
        """One step of R hypotheses, as many of each sentence: logits [R, V], the new state, attention [R, s]."""
        before: list[tuple[Tensor, Tensor] | None] = list(state) if state else [None] * len(self.decoder)
        x, new = self.decoder[0](self.embedding(ids)[None], before[0])
        after = [new]
        query = x[0].unflatten(0, (len(memory.outputs), -1))
        weights = self.attention(query, torch.full_like(memory.lengths, query.shape[1]), memory)
        context = (weights.to(memory.outputs.dtype) @ memory.outputs).flatten(0, 1)[None]
        for number, layer in enumerate(list(self.decoder)[1:]):
            y, new = layer(torch.cat([x.to(context.dtype), context], 2), before[number + 1])
            after.append(new)
            x = y + x if number else y
        return self.classifier(x[0]), after, weights.flatten(0, 1)

    def _contexts(self, query: Tensor, target: Packed, lengths: Tensor, memory: Memory) -> Tensor:
        """[T, H]: what each target piece sees of its source; `lengths` [N] are the targets'."""
        padded = _padded(query, target.places, len(lengths), target.longest)
        weights = self.attention(padded, lengths, memory)
        contexts = weights.to(memory.outputs.dtype) @ memory.outputs
        return contexts.flatten(0, 1)[target.places]

    def _lstm(self, layer: nn.Module, x: Tensor, side: Packed) -> Tensor:
        if kernels.available(x):
            return packed_lstm(layer, x, side.alive)
        # Packed, the processor's LSTM takes twice as long: each step's gradient is spread over all of the input.
        padded = _padded(x, side.places, int(side.alive[0]), side.longest)
        return layer(padded.transpose(0, 1))[0].transpose(0, 1).flatten(0, 1)[side.places]

    def _look_up(self, ids: Tensor) -> Tensor:
        """Embeddings, in the precision of the matrix products from here on."""
        x = self.embedding(ids)
        return x.to(product_dtype(x))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _initialise(self) -> None:
        for name, weight in self.named_parameters():
            if name not in ("attention.scale", "attention.bias"):
                nn.init.zeros_(weight) if ".bias_hh" in name else nn.init.uniform_(weight, -_REACH, _REACH)


class Attention(nn.Module):
    """Normalised Bahdanau attention: softmax over k of v' . tanh(Wq q + Wk k + b), v' of length `scale`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))
        self.scale = nn.Parameter(torch.tensor(width**-0.5))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, query: Tensor, lengths: Tensor, memory: Memory) -> Tensor:
        """Weights [N, t, s] of queries [N, t, H], of which `lengths` [N] exist; 0 where the memory has nothing."""
        v = self.v * (self.scale / self.v.norm())
        query = self.query(query) + self.bias.to(memory.keys.dtype)
        if kernels.available(memory.keys):
            scores = kernels.additive_scores(query.to(memory.keys.dtype), memory.keys, v, lengths, memory.lengths)
        else:
            scores = self._scores(query, memory.keys, v)
        return scores.masked_fill(~memory.exists[:, None], -65504.0).softmax(2)

    def _scores(self, query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        rows = max(1, _AT_ONCE // (query.shape[1] * keys.shape[1] * keys.shape[2]))
        parts = [
            torch.tanh(some[:, :, None] + seen[:, None]).to(v.dtype) @ v
            for some, seen in zip(query.split(rows), keys.split(rows), strict=True)
        ]
        return torch.cat(parts)


def _padded(x: Tensor, places: Tensor, count: int, longest: int) -> Tensor:
    """[count, longest, H] of packed x [T, H], zero where nothing is."""
    padded = x.new_zeros(count * longest, x.shape[1])
    return padded.index_copy(0, places, x).view(count, longest, -1)


def _reversed(places: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """For each packed piece the packed piece that takes its place when every sentence is read backwards: int64 [T]."""
    sentence, position = places // longest, places % longest
    packed = torch.empty(len(lengths) * longest, dtype=torch.int64, device=places.device)
    packed[places] = torch.arange(len(places), device=places.device)
    return packed[sentence * longest + lengths[sentence] - 1 - position]
