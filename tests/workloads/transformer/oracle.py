"""The Transformer (pre-norm, tied embedding) in float64, one sentence and one position at a time, from its description.

No batches, no padding, no dropout. Gradients come by autograd, where the weights require them. With vocabulary V,
width d, filter f, the weights are, each applied as x @ W.T:

    embedding [V, d], also the softmax matrix
    encoder.{i}.attention_norm.weight, .bias [d]    encoder.{i}.qkv.weight [3d, d]    encoder.{i}.out.weight [d, d]
    encoder.{i}.filter_norm.weight, .bias [d]       encoder.{i}.filter.weight [f, d], .bias [f]
    encoder.{i}.back.weight [d, f], .bias [d]       encoder_norm.weight, .bias [d]
    decoder.{i}.*, decoder_norm.*: the same, and    decoder.{i}.cross_norm.weight, .bias [d]
    decoder.{i}.cross_q.weight [d, d]    decoder.{i}.cross_kv.weight [2d, d]    decoder.{i}.cross_out.weight [d, d]
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

PADDING, EOS = 0, 1
NORM_EPSILON = 1e-6


def loss(
    weights: dict[str, Tensor],
    pairs: list[tuple[list[int], list[int]]],
    layers: int,
    heads: int,
    smoothing: float = 0.1,
) -> Tensor:
    """The smoothed cross entropy less its least value, summed over the target tokens of all pairs: [].

    A pair is (source, target), each with its EOS.
    """
    vocabulary = weights["embedding"].shape[0]
    confidence, rest = 1 - smoothing, smoothing / (vocabulary - 1)
    least = -_x_log_x(confidence) - (vocabulary - 1) * _x_log_x(rest)
    total = torch.zeros((), dtype=torch.float64)
    for source, target in pairs:
        assert PADDING not in target
        rows = torch.log_softmax(logits(weights, source, target[:-1], layers, heads), dim=-1)
        for row, label in zip(rows, target, strict=True):
            others = row.sum() - row[label]
            total = total - confidence * row[label] - rest * others - least
    return total


def logits(weights: dict[str, Tensor], source: list[int], target_prefix: list[int], layers: int, heads: int) -> Tensor:
    """[len(target_prefix) + 1, V]: row t predicts target token t from the source and target_prefix[:t]."""
    return _decode(weights, _encode(weights, source, layers, heads), target_prefix, layers, heads)


def best_by_exhaustion(
    weights: dict[str, Tensor],
    source: list[int],
    longest: int,
    score: Callable[[float, int, None], float],
    layers: int,
    heads: int,
) -> tuple[list[int], float]:
    """The best of all outputs of at most `longest` tokens, EOS counted, and its score.

    An output is any tokens but EOS, then EOS (which the answer includes). It is worth score(total log probability,
    length with EOS, None). Of equals the first in depth-first order wins.
    """
    best: tuple[list[int], float] = ([], -math.inf)

    def extend(prefix: list[int], so_far: float) -> None:
        nonlocal best
        last = _decode(weights, memory, prefix, layers, heads)[-1]
        for token, log_probability in enumerate(torch.log_softmax(last, dim=-1).tolist()):
            output, total = [*prefix, token], so_far + log_probability
            if token == EOS:
                worth = score(total, len(output), None)
                if worth > best[1]:
                    best = (output, worth)
            elif len(output) < longest:
                extend(output, total)

    with torch.no_grad():
        memory = _encode(weights, source, layers, heads)
        extend([], 0.0)
    return best


def count_parameters(vocabulary: int, width: int, filter: int, layers: int) -> int:
    norm = 2 * width
    self_attention = norm + 4 * width * width
    cross_attention = norm + 4 * width * width
    feed_forward = norm + (filter * width + filter) + (width * filter + width)
    encoder = layers * (self_attention + feed_forward) + norm
    decoder = layers * (self_attention + cross_attention + feed_forward) + norm
    return vocabulary * width + encoder + decoder


def _encode(weights: dict[str, Tensor], source: list[int], layers: int, heads: int) -> Tensor:
    """[S, d]"""
    assert PADDING not in source
    d = weights["embedding"].shape[1]
    x = torch.stack([_embed(weights, token) + _position(p, d) for p, token in enumerate(source)])
    for i in range(layers):
        name = f"encoder.{i}"
        y = _norm(x, weights, f"{name}.attention_norm")
        x = x + _self_attention(y, weights, name, heads, causal=False)
        x = x + _feed_forward(_norm(x, weights, f"{name}.filter_norm"), weights, name)
    return _norm(x, weights, "encoder_norm")


def _decode(weights: dict[str, Tensor], memory: Tensor, prefix: list[int], layers: int, heads: int) -> Tensor:
    """Logits [len(prefix) + 1, V] from the encoder's memory [S, d]."""
    d = weights["embedding"].shape[1]
    inputs = [torch.zeros(d, dtype=torch.float64), *(_embed(weights, token) for token in prefix)]
    x = torch.stack([vector + _position(p, d) for p, vector in enumerate(inputs)])
    for i in range(layers):
        name = f"decoder.{i}"
        y = _norm(x, weights, f"{name}.attention_norm")
        x = x + _self_attention(y, weights, name, heads, causal=True)
        y = _norm(x, weights, f"{name}.cross_norm")
        x = x + _cross_attention(y, memory, weights, name, heads)
        x = x + _feed_forward(_norm(x, weights, f"{name}.filter_norm"), weights, name)
    return _norm(x, weights, "decoder_norm") @ weights["embedding"].T


def _embed(weights: dict[str, Tensor], token: int) -> Tensor:
    """[d]; padding, which only a decoder's prefix may hold here, is the zero vector."""
    row = weights["embedding"][token]
    return row * 0 if token == PADDING else row * math.sqrt(row.shape[0])


def _position(position: int, d: int) -> Tensor:
    """[d]: sines, then cosines, at d / 2 rates falling geometrically from 1 to 1/10000."""
    half = d // 2
    angles = [position * 10000 ** (-i / max(half - 1, 1)) for i in range(half)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def _norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """[T, d] -> [T, d]"""
    rows = []
    for row in x:
        centred = row - row.sum() / len(row)
        variance = (centred * centred).sum() / len(row)
        normal = centred / torch.sqrt(variance + NORM_EPSILON)
        rows.append(normal * weights[f"{name}.weight"] + weights[f"{name}.bias"])
    return torch.stack(rows)


def _self_attention(x: Tensor, weights: dict[str, Tensor], name: str, heads: int, causal: bool) -> Tensor:
    """[T, d] -> [T, d]"""
    d = x.shape[1]
    matrix = weights[f"{name}.qkv.weight"]
    q, k, v = x @ matrix[:d].T, x @ matrix[d : 2 * d].T, x @ matrix[2 * d :].T
    return _attend(q, k, v, heads, causal) @ weights[f"{name}.out.weight"].T


def _cross_attention(x: Tensor, memory: Tensor, weights: dict[str, Tensor], name: str, heads: int) -> Tensor:
    """[T, d], [S, d] -> [T, d]"""
    d = x.shape[1]
    matrix = weights[f"{name}.cross_kv.weight"]
    q, k, v = x @ weights[f"{name}.cross_q.weight"].T, memory @ matrix[:d].T, memory @ matrix[d:].T
    return _attend(q, k, v, heads, causal=False) @ weights[f"{name}.cross_out.weight"].T


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    """[T, d], [S, d], [S, d] -> [T, d]; where causal, position t sees positions up to and with t."""
    size = q.shape[1] // heads
    rows = []
    for t in range(q.shape[0]):
        seen = t + 1 if causal else k.shape[0]
        parts = []
        for h in range(heads):
            columns = slice(h * size, (h + 1) * size)
            scores = k[:seen, columns] @ (q[t, columns] * size**-0.5)
            parts.append(torch.softmax(scores, dim=0) @ v[:seen, columns])
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def _feed_forward(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """[T, d] -> [T, d]"""
    hidden = torch.relu(x @ weights[f"{name}.filter.weight"].T + weights[f"{name}.filter.bias"])
    return hidden @ weights[f"{name}.back.weight"].T + weights[f"{name}.back.bias"]


def _x_log_x(x: float) -> float:
    return x * math.log(x) if x > 0 else 0.0
