"""GNMT (Wu et al. 2016) as in docs/mlperf_rules.md, "GNMT": four LSTM layers per side, attention after the first.

Sentences are packed (data.py), so nothing is computed for padding except in the attention, whose scores and contexts
are padded to the longest sentence of the batch. Shapes: N sentences, H hidden size, V vocabulary, S and T tokens of all
sources and targets, s and t tokens of the longest source and target, R hypotheses.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..common.nn.autocast import matmul_dtype
from ..common.nn.triton_support import triton_available
from ..common.translation.fused_linear_cross_entropy import fused_linear_cross_entropy
from .concat_dropout import concat_dropout
from .data import PackedPairs, PackedSentences
from .kernels import additive_scores
from .lstm import packed_lstm

_INIT_BOUND = 0.1  # weights are initialized uniformly in [-0.1, 0.1]
_MASKED_SCORE = -65504.0  # the smallest fp16 number
_ADDITIVE_CHUNK = 1 << 24  # values of the [N, t, s, H] intermediate at a time where no kernel runs

State = list[tuple[Tensor, Tensor]]
"""Hidden state and cell of each decoder layer, [1, R, H] each."""


class Memory(NamedTuple):
    """The encoder's result: outputs and attention keys [N, s, H], lengths [N], and the mask of valid tokens [N, s]."""

    outputs: Tensor
    keys: Tensor
    lengths: Tensor
    mask: Tensor


class GNMT(nn.Module):
    """Maps a batch to its summed loss; `encode` and `decode_step` serve the beam search."""

    def __init__(self, vocab_size: int, hidden_size: int, dropout: float, label_smoothing: float) -> None:
        super().__init__()
        self.dropout, self.label_smoothing = dropout, label_smoothing
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        directions = {name: nn.LSTM(hidden_size, hidden_size) for name in ("forward_lstm", "backward_lstm")}
        first: nn.Module = nn.ModuleDict(directions)
        upper = [nn.LSTM(inputs * hidden_size, hidden_size) for inputs in (2, 1, 1)]
        self.encoder = nn.ModuleList([first, *upper])
        self.decoder = nn.ModuleList([nn.LSTM(inputs * hidden_size, hidden_size) for inputs in (1, 2, 2, 2)])
        self.attention = Attention(hidden_size)
        self.classifier = nn.Linear(hidden_size, vocab_size)
        self._initialize()

    def forward(self, batch: PackedPairs) -> Tensor:
        """Return the label-smoothed cross entropy, summed over all target tokens."""
        source_lengths, target_lengths = batch.lengths
        memory = self.encode(batch.source, source_lengths)
        x = self._dropout(self._embed(batch.target.ids))
        x = self._lstm(self.decoder[0], x, batch.target)
        context = self._contexts(x, batch.target, target_lengths, memory)
        for number, layer in enumerate(list(self.decoder)[1:]):
            y = self._lstm(layer, self._dropout(x, context), batch.target)
            x = y + x if number else y
        return fused_linear_cross_entropy(
            x,
            self.classifier.weight,
            self.classifier.bias,
            batch.labels,
            target_weight=1 - self.label_smoothing,
            smoothing_weight=self.label_smoothing / self.classifier.out_features,
        )

    def encode(self, source: PackedSentences, lengths: Tensor) -> Memory:
        """Encode the source; `lengths` int64 [N] descend."""
        x = self._dropout(self._embed(source.ids))
        first = dict(self.encoder[0].named_children())
        reversal = _reversal(source.padded_indices, lengths, source.max_length)
        forward = self._lstm(first["forward_lstm"], x, source)
        backward = _Reversed.apply(self._lstm(first["backward_lstm"], _Reversed.apply(x, reversal), source), reversal)
        x = self._lstm(self.encoder[1], self._dropout(forward, backward), source)
        for layer in list(self.encoder)[2:]:
            x = self._lstm(layer, self._dropout(x), source) + x
        outputs = _pad(x, source.padded_indices, len(lengths), source.max_length)
        mask = torch.arange(source.max_length, device=lengths.device) < lengths[:, None]
        return Memory(outputs, self.attention.key(outputs), lengths, mask)

    def decode_step(self, ids: Tensor, state: State | None, memory: Memory) -> tuple[Tensor, State, Tensor]:
        """Decode one token of R hypotheses, R / N per sentence: logits [R, V], the new state, attention [R, s]."""
        layer_states: list[tuple[Tensor, Tensor] | None] = list(state) if state else [None] * len(self.decoder)
        x, layer_state = self.decoder[0](self.embedding(ids)[None], layer_states[0])
        new_state = [layer_state]
        query = x[0].unflatten(0, (len(memory.outputs), -1))
        attention = self.attention(query, torch.full_like(memory.lengths, query.shape[1]), memory)
        context = (attention.to(memory.outputs.dtype) @ memory.outputs).flatten(0, 1)[None]
        for number, layer in enumerate(list(self.decoder)[1:]):
            y, layer_state = layer(torch.cat([x.to(context.dtype), context], 2), layer_states[number + 1])
            new_state.append(layer_state)
            x = y + x if number else y
        return self.classifier(x[0]), new_state, attention.flatten(0, 1)

    def _contexts(self, query: Tensor, target: PackedSentences, lengths: Tensor, memory: Memory) -> Tensor:
        """Return the attention context of each target token, [T, H]; `lengths` [N] are those of the targets."""
        padded = _pad(query, target.padded_indices, len(lengths), target.max_length)
        attention = self.attention(padded, lengths, memory)
        contexts = attention.to(memory.outputs.dtype) @ memory.outputs
        return _Unpadded.apply(contexts, target.padded_indices)

    def _lstm(self, layer: nn.Module, x: Tensor, sentences: PackedSentences) -> Tensor:
        if triton_available(x):
            return packed_lstm(layer, x, sentences.batch_sizes)
        # On the CPU a PackedSequence takes twice as long: each step's gradient is as large as the whole input.
        padded = _pad(x, sentences.padded_indices, sentences.batch_sizes[0], sentences.max_length)
        return _Unpadded.apply(layer(padded.transpose(0, 1))[0].transpose(0, 1), sentences.padded_indices)

    def _embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings in the dtype of the matrix products that follow."""
        x = self.embedding(ids)
        return x.to(matmul_dtype(x))

    def _dropout(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Return the concatenation of the tensors [T, ...], with dropout while training."""
        return concat_dropout(left, right, self.dropout, self.training)

    def _initialize(self) -> None:
        for name, weight in self.named_parameters():
            if name not in ("attention.scale", "attention.bias"):
                nn.init.zeros_(weight) if ".bias_hh" in name else nn.init.uniform_(weight, -_INIT_BOUND, _INIT_BOUND)


class Attention(nn.Module):
    """Normalized Bahdanau attention: softmax over k of v' . tanh(Wq q + Wk k + b), where v' = scale * v / |v|.

    Bahdanau et al. 2014 (arXiv:1409.0473) with the weight normalization of Salimans and Kingma 2016 (arXiv:1602.07868).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size))
        self.scale = nn.Parameter(torch.tensor(hidden_size**-0.5))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, query: Tensor, lengths: Tensor, memory: Memory) -> Tensor:
        """Return the weights [N, t, s] of the queries [N, t, H], of which `lengths` [N] are valid; 0 for padding."""
        v = self.v * (self.scale / self.v.norm())
        query = self.query(query) + self.bias.to(memory.keys.dtype)
        if triton_available(memory.keys):
            scores = additive_scores(query.to(memory.keys.dtype), memory.keys, v, lengths, memory.lengths)
        else:
            scores = self._scores(query, memory.keys, v)
        return scores.masked_fill(~memory.mask[:, None], _MASKED_SCORE).softmax(2)

    def _scores(self, query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        chunk = max(1, _ADDITIVE_CHUNK // (query.shape[1] * keys.shape[1] * keys.shape[2]))
        scores = [
            torch.tanh(chunk_query[:, :, None] + chunk_keys[:, None]).to(v.dtype) @ v
            for chunk_query, chunk_keys in zip(query.split(chunk), keys.split(chunk), strict=True)
        ]
        return torch.cat(scores)


class _Reversed(torch.autograd.Function):
    """y = x[reversal] for x [T, H], with the order of `_reversal`, which is its own inverse: dx = dy[reversal].

    The gradient of plain indexing sorts the indices and adds rows, because they could repeat.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, reversal: Tensor) -> Tensor:
        ctx.save_for_backward(reversal)
        return x[reversal]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy[ctx.saved_tensors[0]], None


class _Unpadded(torch.autograd.Function):
    """y = x.flatten(0, 1)[padded_indices], [T, H], for x [count, max_length, H]: the inverse of `_pad`, dx = _pad(dy).

    No index repeats here either.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, padded_indices: Tensor) -> Tensor:
        ctx.save_for_backward(padded_indices)
        ctx.shape = x.shape[:2]
        return x.flatten(0, 1)[padded_indices]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _pad(dy, ctx.saved_tensors[0], *ctx.shape), None


def _pad(x: Tensor, padded_indices: Tensor, count: int, max_length: int) -> Tensor:
    """Return packed x [T, H] as [count, max_length, H], padded with zeros."""
    padded = x.new_zeros(count * max_length, x.shape[1])
    return padded.index_copy(0, padded_indices, x).view(count, max_length, -1)


def _reversal(padded_indices: Tensor, lengths: Tensor, max_length: int) -> Tensor:
    """Return the indices int64 [T] that reverse the tokens of each packed sentence, and leave padding in place."""
    sentence, position = padded_indices // max_length, padded_indices % max_length
    packed_indices = torch.empty(len(lengths) * max_length, dtype=torch.int64, device=padded_indices.device)
    packed_indices[padded_indices] = torch.arange(len(padded_indices), device=padded_indices.device)
    reversed_position = torch.where(position < lengths[sentence], lengths[sentence] - 1 - position, position)
    return packed_indices[sentence * max_length + reversed_position]
