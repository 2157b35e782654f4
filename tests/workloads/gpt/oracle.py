"""GPT-2 (Radford et al. 2019) in float64, one window, position and head at a time, from its description.

There is no dropout. Gradients come from autograd if the weights require them. With vocabulary V, context t and width
d, the weights are these; each matrix is applied as x @ W.T, and biases that are not given are zero:

    embedding [V, d], also the matrix of the logits    position [t, d]
    layers.{i}.attention_norm.weight, .bias [d]        layers.{i}.qkv.weight [3d, d], .bias [3d]
    layers.{i}.out.weight [d, d], .bias [d]            layers.{i}.ffn_norm.weight, .bias [d]
    layers.{i}.ffn_up.weight [4d, d], .bias [4d]       layers.{i}.ffn_down.weight [d, 4d], .bias [d]
    norm.weight, .bias [d]
"""

import math

import torch
from torch import Tensor

NORM_EPSILON = 1e-5


def loss(weights: dict[str, Tensor], windows: list[list[int]], num_layers: int, num_heads: int) -> Tensor:
    """Return the sum of -log p(next token) over all tokens of the windows but the first of each: []."""
    total = torch.zeros((), dtype=torch.float64)
    for tokens in windows:
        rows = logits(weights, tokens[:-1], num_layers, num_heads)
        for row, label in zip(rows, tokens[1:], strict=True):
            largest = row.max().detach()
            total = total + largest + torch.log(torch.exp(row - largest).sum()) - row[label]
    return total


def logits(weights: dict[str, Tensor], tokens: list[int], num_layers: int, num_heads: int) -> list[Tensor]:
    """Return [V] for each token: its row predicts the next token."""
    return [weights["embedding"] @ state for state in states(weights, tokens, num_layers, num_heads)]


def states(weights: dict[str, Tensor], tokens: list[int], num_layers: int, num_heads: int) -> list[Tensor]:
    """Return the output [d] of the last layer norm at each token."""
    xs = [weights["embedding"][token] + weights["position"][p] for p, token in enumerate(tokens)]
    for i in range(num_layers):
        name = f"layers.{i}"
        attended = _attention([_norm(x, weights, f"{name}.attention_norm") for x in xs], weights, name, num_heads)
        xs = [x + y for x, y in zip(xs, attended, strict=True)]
        xs = [x + _feed_forward(_norm(x, weights, f"{name}.ffn_norm"), weights, name) for x in xs]
    return [_norm(x, weights, "norm") for x in xs]


def count_parameters(vocab_size: int, context: int, hidden_size: int, num_layers: int, bias: bool) -> int:
    matrices = (3 + 1 + 4 + 4) * hidden_size * hidden_size
    biases = (3 + 1 + 4 + 1) * hidden_size if bias else 0
    norm = (2 if bias else 1) * hidden_size
    return (vocab_size + context) * hidden_size + num_layers * (matrices + biases + 2 * norm) + norm


def _attention(xs: list[Tensor], weights: dict[str, Tensor], name: str, num_heads: int) -> list[Tensor]:
    """Map a vector [d] at each position to a vector [d]; a position attends to itself and those before it."""
    d = len(xs[0])
    size = d // num_heads
    projected = [_linear(x, weights, f"{name}.qkv") for x in xs]
    results = []
    for t in range(len(xs)):
        heads = []
        for h in range(num_heads):
            q, k, v = (slice(part * d + h * size, part * d + (h + 1) * size) for part in range(3))
            scores = [projected[t][q] @ projected[s][k] / math.sqrt(size) for s in range(t + 1)]
            powers = [torch.exp(score - max(scores).detach()) for score in scores]
            total = sum(powers)
            heads.append(sum(power / total * projected[s][v] for s, power in enumerate(powers)))
        results.append(_linear(torch.cat(heads), weights, f"{name}.out"))
    return results


def _feed_forward(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Map [d] to [d] with GELU's approximation by tanh (Hendrycks and Gimpel 2016)."""
    y = _linear(x, weights, f"{name}.ffn_up")
    y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)))
    return _linear(y, weights, f"{name}.ffn_down")


def _linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


def _norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Map [d] to [d]."""
    centered = x - x.sum() / len(x)
    variance = (centered * centered).sum() / len(x)
    normalized = centered / torch.sqrt(variance + NORM_EPSILON)
    return normalized * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)
