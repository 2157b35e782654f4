"""The Transformer (pre-norm, tied embedding) in float64, one sentence and position at a time, from its description.

There are no batches, no padding and no dropout. Gradients come from autograd if the weights require them. With
vocabulary V, hidden size d and feed-forward size f, the weights are these; each is applied as x @ W.T:

    embedding [V, d], also the softmax matrix
    encoder.{i}.attention_norm.weight, .bias [d]    encoder.{i}.qkv.weight [3d, d]    encoder.{i}.out.weight [d, d]
    encoder.{i}.ffn_norm.weight, .bias [d]          encoder.{i}.ffn_up.weight [f, d], .bias [f]
    encoder.{i}.ffn_down.weight [d, f], .bias [d]   encoder_norm.weight, .bias [d]
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
    num_layers: int,
    num_heads: int,
    smoothing: float = 0.1,
) -> Tensor:
    """Return the label-smoothed cross entropy minus its smallest value, summed over the target tokens of all pairs: [].

    A pair is (source, target), each with its EOS.
    """
    vocabulary = weights["embedding"].shape[0]
    confidence, rest = 1 - smoothing, smoothing / (vocabulary - 1)
    entropy = -_x_log_x(confidence) - (vocabulary - 1) * _x_log_x(rest)
    total = torch.zeros((), dtype=torch.float64)
    for source, target in pairs:
        assert PADDING not in target
        rows = torch.log_softmax(logits(weights, source, target[:-1], num_layers, num_heads), dim=-1)
        for row, label in zip(rows, target, strict=True):
            others = row.sum() - row[label]
            total = total - confidence * row[label] - rest * others - entropy
    return total


def logits(
    weights: dict[str, Tensor], source: list[int], target_prefix: list[int], num_layers: int, num_heads: int
) -> Tensor:
    """Return [len(target_prefix) + 1, V]: row t predicts target token t from the source and target_prefix[:t]."""
    return _decode(weights, _encode(weights, source, num_layers, num_heads), target_prefix, num_layers, num_heads)


def exhaustive_search(
    weights: dict[str, Tensor],
    source: list[int],
    max_length: int,
    score: Callable[[float, int, None], float],
    num_layers: int,
    num_heads: int,
) -> tuple[list[int], float]:
    """Return the best of all outputs of at most `max_length` tokens, including EOS, and its score.

    An output is any tokens but EOS, then EOS, which is part of the result. Its score is score(total log probability,
    length with EOS, None). Ties go to the first output in depth-first order.
    """
    best: tuple[list[int], float] = ([], -math.inf)

    def extend(prefix: list[int], prefix_log_probability: float) -> None:
        nonlocal best
        last = _decode(weights, memory, prefix, num_layers, num_heads)[-1]
        for token, log_probability in enumerate(torch.log_softmax(last, dim=-1).tolist()):
            output, total = [*prefix, token], prefix_log_probability + log_probability
            if token == EOS:
                output_score = score(total, len(output), None)
                if output_score > best[1]:
                    best = (output, output_score)
            elif len(output) < max_length:
                extend(output, total)

    with torch.no_grad():
        memory = _encode(weights, source, num_layers, num_heads)
        extend([], 0.0)
    return best


def count_parameters(vocab_size: int, hidden_size: int, ffn_dim: int, num_layers: int) -> int:
    norm = 2 * hidden_size
    self_attention = norm + 4 * hidden_size * hidden_size
    cross_attention = norm + 4 * hidden_size * hidden_size
    feed_forward = norm + (ffn_dim * hidden_size + ffn_dim) + (hidden_size * ffn_dim + hidden_size)
    encoder = num_layers * (self_attention + feed_forward) + norm
    decoder = num_layers * (self_attention + cross_attention + feed_forward) + norm
    return vocab_size * hidden_size + encoder + decoder


def _encode(weights: dict[str, Tensor], source: list[int], num_layers: int, num_heads: int) -> Tensor:
    """Return the encoder output [S, d]."""
    assert PADDING not in source
    d = weights["embedding"].shape[1]
    x = torch.stack([_embed(weights, token) + _position(p, d) for p, token in enumerate(source)])
    for i in range(num_layers):
        name = f"encoder.{i}"
        y = _norm(x, weights, f"{name}.attention_norm")
        x = x + _self_attention(y, weights, name, num_heads, causal=False)
        x = x + _feed_forward(_norm(x, weights, f"{name}.ffn_norm"), weights, name)
    return _norm(x, weights, "encoder_norm")


def _decode(weights: dict[str, Tensor], memory: Tensor, prefix: list[int], num_layers: int, num_heads: int) -> Tensor:
    """Return logits [len(prefix) + 1, V] from the encoder's memory [S, d]."""
    d = weights["embedding"].shape[1]
    inputs = [torch.zeros(d, dtype=torch.float64), *(_embed(weights, token) for token in prefix)]
    x = torch.stack([vector + _position(p, d) for p, vector in enumerate(inputs)])
    for i in range(num_layers):
        name = f"decoder.{i}"
        y = _norm(x, weights, f"{name}.attention_norm")
        x = x + _self_attention(y, weights, name, num_heads, causal=True)
        y = _norm(x, weights, f"{name}.cross_norm")
        x = x + _cross_attention(y, memory, weights, name, num_heads)
        x = x + _feed_forward(_norm(x, weights, f"{name}.ffn_norm"), weights, name)
    return _norm(x, weights, "decoder_norm") @ weights["embedding"].T


def _embed(weights: dict[str, Tensor], token: int) -> Tensor:
    """Return the embedding [d]; padding, which only a decoder's prefix may contain here, is the zero vector."""
    row = weights["embedding"][token]
    return row * 0 if token == PADDING else row * math.sqrt(row.shape[0])


def _position(position: int, d: int) -> Tensor:
    """Return [d]: sines, then cosines, at d / 2 rates that fall geometrically from 1 to 1/10000."""
    half = d // 2
    angles = [position * 10000 ** (-i / max(half - 1, 1)) for i in range(half)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def _norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Map [T, d] to [T, d]."""
    rows = []
    for row in x:
        centered = row - row.sum() / len(row)
        variance = (centered * centered).sum() / len(row)
        normalized = centered / torch.sqrt(variance + NORM_EPSILON)
        rows.append(normalized * weights[f"{name}.weight"] + weights[f"{name}.bias"])
    return torch.stack(rows)


def _self_attention(x: Tensor, weights: dict[str, Tensor], name: str, num_heads: int, causal: bool) -> Tensor:
    """Map [T, d] to [T, d]."""
    d = x.shape[1]
    matrix = weights[f"{name}.qkv.weight"]
    q, k, v = x @ matrix[:d].T, x @ matrix[d : 2 * d].T, x @ matrix[2 * d :].T
    return _attend(q, k, v, num_heads, causal) @ weights[f"{name}.out.weight"].T


def _cross_attention(x: Tensor, memory: Tensor, weights: dict[str, Tensor], name: str, num_heads: int) -> Tensor:
    """Map [T, d] and [S, d] to [T, d]."""
    d = x.shape[1]
    matrix = weights[f"{name}.cross_kv.weight"]
    q, k, v = x @ weights[f"{name}.cross_q.weight"].T, memory @ matrix[:d].T, memory @ matrix[d:].T
    return _attend(q, k, v, num_heads, causal=False) @ weights[f"{name}.cross_out.weight"].T


def _attend(q: Tensor, k: Tensor, v: Tensor, num_heads: int, causal: bool) -> Tensor:
    """Map [T, d], [S, d] and [S, d] to [T, d]; if causal, position t attends to positions up to and including t."""
    size = q.shape[1] // num_heads
    rows = []
    for t in range(q.shape[0]):
        visible = t + 1 if causal else k.shape[0]
        parts = []
        for h in range(num_heads):
            columns = slice(h * size, (h + 1) * size)
            scores = k[:visible, columns] @ (q[t, columns] * size**-0.5)
            parts.append(torch.softmax(scores, dim=0) @ v[:visible, columns])
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def _feed_forward(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Map [T, d] to [T, d]."""
    hidden = torch.relu(x @ weights[f"{name}.ffn_up.weight"].T + weights[f"{name}.ffn_up.bias"])
    return hidden @ weights[f"{name}.ffn_down.weight"].T + weights[f"{name}.ffn_down.bias"]


def _x_log_x(x: float) -> float:
    return x * math.log(x) if x > 0 else 0.0
