"""Transformer: a transcription of MLPerf's rules in plain PyTorch; the reference is a TensorFlow program.

It shares the token ids, the hyperparameters and the BLEU of timetrial, and neither its batches, model, optimizer,
schedule nor search. Sentences are padded, and the search keeps nothing between its steps.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timetrial.datasets.text.prepared_corpus import PreparedCorpus
from timetrial.runner.config.schema import Config
from timetrial.workloads.transformer.data import TransformerData
from timetrial.workloads.transformer.vocabulary import SharedVocabulary
from timetrial.workloads.transformer.workload import TransformerWorkload

from .curves import Recorder, eval_epochs, recipe_settings

DEFAULTS = (
    *("workload=transformer", "recipe=transformer/mini", "precision=bf16"),
    *("recipe.max_epochs=20", "recipe.first_eval_epoch=4", "recipe.eval_every_epochs=4"),
)

_PAD, _EOS = 0, 1
_SEARCH_SENTENCES = 128
Pair = tuple[np.ndarray, np.ndarray]


def train_reference(config: Config, checkout: Path | None, seed: int, folder: Path, recorder: Recorder) -> None:
    """Train the transcription."""
    torch.manual_seed(seed)
    training, data = recipe_settings(config)
    corpus: PreparedCorpus = TransformerData._prepare(data)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = [pair for pair in _pairs(corpus, "train") if max(map(len, pair)) <= data.max_length]
    model = _Transformer(len(SharedVocabulary.read(corpus.folder / "vocabulary")), training).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), betas=(training.beta_1, training.beta_2), eps=training.epsilon, fused=device.type == "cuda"
    )
    generator, points, step = np.random.default_rng(seed), eval_epochs(config), 0
    warmup = training.warmup_tokens / config.recipe.global_batch_size
    is_bf16 = config.precision.name == "bf16"
    for epoch in range(1, config.recipe.max_epochs + 1):
        model.train()
        for numbers in _batches(train, config.recipe.global_batch_size, generator):
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate * min(step / warmup, math.sqrt(warmup / step))
            source, target = (_pad([train[number][side] for number in numbers], device) for side in (0, 1))
            with torch.autocast(device.type, torch.bfloat16, is_bf16):
                logits = model(source, target)
            loss = _smoothed_loss(logits.float(), target, training.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
        if epoch in points:
            model.eval()
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, is_bf16):
                recorder.evaluated(epoch, _bleu(model, corpus, training, device))


def _pairs(corpus: PreparedCorpus, split: str) -> list[Pair]:
    """Return the ids of all pairs, each side with its end token; those of the test set have an empty target."""
    sides = []
    for side in ("source", "target") if split == "train" else ("source",):
        tokens = corpus.tokens(split, side)
        bounds = tokens.offsets
        sides.append(
            [np.append(tokens.ids[bounds[k] : bounds[k + 1]], _EOS).astype(np.int64) for k in range(len(tokens))]
        )
    empty = np.zeros(0, np.int64)
    return list(zip(*sides, strict=True)) if len(sides) > 1 else [(ids, empty) for ids in sides[0]]


def _batches(pairs: Sequence[Pair], tokens: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Yield the numbers of shuffled pairs with at most `tokens` tokens on their longer side together."""
    batch: list[int] = []
    used = [0, 0]
    for number in generator.permutation(len(pairs)).tolist():
        lengths = [len(ids) for ids in pairs[number]]
        if max(used[0] + lengths[0], used[1] + lengths[1]) > tokens:
            yield batch
            batch, used = [], [0, 0]
        batch.append(number)
        used = [used[0] + lengths[0], used[1] + lengths[1]]
    yield batch


def _pad(sentences: Sequence[np.ndarray], device: torch.device) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.from_numpy(ids) for ids in sentences], batch_first=True).to(device)


class _Attention(nn.Module):
    """Attention of several heads; its four projections have no bias."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads, self._dropout = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, queries: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            layer(states).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for layer, states in ((self.query, queries), (self.key, memory), (self.value, memory))
        )
        scores = (query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])).masked_fill(~mask, -math.inf)
        mixed = F.dropout(scores.softmax(-1), self._dropout, self.training) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        return self.outer(self.dropout(F.relu(self.inner(states))))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """A layer of either stack: norms come before its parts, which are added after dropout."""

    def __init__(self, settings: Any, has_memory: bool) -> None:
        super().__init__()
        width, dropout = settings.hidden_size, settings.dropout
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2 + has_memory))
        self.attentions = nn.ModuleList(_Attention(width, settings.num_heads, dropout) for _ in range(1 + has_memory))
        self.feed_forward, self.dropout = _FeedForward(width, settings.ffn_dim, dropout), nn.Dropout(dropout)

    def forward(self, states: Tensor, mask: Tensor, memory: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        normed = self.norms[0](states)
        states = states + self.dropout(self.attentions[0](normed, normed, mask))
        if memory is not None:
            states = states + self.dropout(self.attentions[1](self.norms[1](states), memory, memory_mask))
        return states + self.dropout(self.feed_forward(self.norms[-1](states)))  # type: ignore[no-any-return]


class _Transformer(nn.Module):
    def __init__(self, vocabulary: int, settings: Any) -> None:
        super().__init__()
        self._width = settings.hidden_size
        self.embedding = nn.Embedding(vocabulary, self._width)
        layers = settings.num_layers
        self.encoder = nn.ModuleList(_Layer(settings, has_memory=False) for _ in range(layers))
        self.decoder = nn.ModuleList(_Layer(settings, has_memory=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = (nn.LayerNorm(self._width, eps=1e-6) for _ in range(2))
        self.dropout = nn.Dropout(settings.dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, 0.0, self._width**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits [N, T, V] of target ids [N, T], of which each is predicted from those before it."""
        return self.decode(self.embed(target), *self.encode(source))

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids) * (ids != _PAD)[..., None] * math.sqrt(self._width)  # type: ignore[no-any-return]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        mask = (source != _PAD)[:, None, None]
        states = self.dropout(self.embed(source) + self._positions(source.shape[1], source.device))
        for layer in self.encoder:
            states = layer(states, mask, None, None)
        return self.encoder_norm(states), mask

    def decode(self, embedded: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        length = embedded.shape[1]
        shifted = F.pad(embedded, (0, 0, 1, -1))
        mask = torch.ones(length, length, dtype=torch.bool, device=embedded.device).tril()
        states = self.dropout(shifted + self._positions(length, embedded.device))
        for layer in self.decoder:
            states = layer(states, mask, memory, memory_mask)
        return self.decoder_norm(states) @ self.embedding.weight.T  # type: ignore[no-any-return]

    def _positions(self, length: int, device: torch.device) -> Tensor:
        half = self._width // 2
        rates = torch.exp(torch.arange(half, device=device) * (-math.log(1e4) / (half - 1)))
        angles = torch.arange(length, device=device)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)


def _smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross entropy over labels that are no padding; `smoothing` is spread over V - 1 other words."""
    logs, spread = logits.log_softmax(-1), smoothing / (logits.shape[-1] - 1)
    of_label = logs.gather(-1, labels[..., None])[..., 0]
    losses = -(1 - smoothing - spread) * of_label - spread * logs.sum(-1)
    known = labels != _PAD
    return losses[known].mean()


def _bleu(model: _Transformer, corpus: PreparedCorpus, settings: Any, device: torch.device) -> float:
    sources = [pair[0] for pair in _pairs(corpus, "test")]
    order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
    found: dict[int, list[int]] = {}
    for start in range(0, len(order), _SEARCH_SENTENCES):
        numbers = order[start : start + _SEARCH_SENTENCES]
        source = _pad([sources[number] for number in numbers], device)
        found |= zip(numbers, _search(model, source, settings), strict=True)
    vocabulary = SharedVocabulary.read(corpus.folder / "vocabulary")
    hypotheses = [vocabulary.decode(found[number]) for number in range(len(sources))]
    return TransformerWorkload.build_bleu(corpus.references())(hypotheses)


def _search(model: _Transformer, source: Tensor, settings: Any) -> list[list[int]]:
    """Return the best hypothesis of each sentence, by log probability over ((5 + length) / 6)^alpha."""
    beam, count, device = settings.beam_size, len(source), source.device
    memory, mask = (states.repeat_interleave(beam, 0) for states in model.encode(source))
    ids = torch.zeros(count * beam, 1, dtype=torch.int64, device=device)  # the place of the next word is last
    scores = torch.full((count, beam), -math.inf, device=device)
    scores[:, 0] = 0.0
    best: list[tuple[float, list[int]]] = [(-math.inf, [])] * count
    longest = source.shape[1] + settings.extra_decode_length
    for length in range(1, longest + 1):
        logs = model.decode(model.embed(ids), memory, mask)[:, -1].float().log_softmax(-1).view(count, beam, -1)
        totals, places = (scores[..., None] + logs).flatten(1).topk(2 * beam)
        words, origins = places % logs.shape[-1], places // logs.shape[-1]
        penalty = ((5 + length) / 6) ** settings.length_penalty
        ends = words == _EOS
        for sentence, rank in ends.nonzero().tolist():
            score = float(totals[sentence, rank]) / penalty
            if score > best[sentence][0]:
                parent = sentence * beam + int(origins[sentence, rank])
                best[sentence] = score, ids[parent, : length - 1].tolist()
        scores, kept = totals.masked_fill(ends, -math.inf).topk(beam)
        parents = origins.gather(1, kept) + torch.arange(count, device=device)[:, None] * beam
        ids = torch.cat([ids[parents.flatten(), : length - 1], words.gather(1, kept).view(-1, 1)], 1)
        ids = F.pad(ids, (0, 1))
        bound = ((5 + longest) / 6) ** settings.length_penalty
        if all(best[k][0] >= score / bound for k, score in enumerate(scores[:, 0].tolist())):
            break
    unfinished = ids[::beam, :-1].tolist()
    return [words if score > -math.inf else unfinished[k] for k, (score, words) in enumerate(best)]
