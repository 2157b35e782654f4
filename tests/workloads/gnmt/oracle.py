"""GNMT in float64, one sentence and one time step at a time, written from its description.

There are no batches, no padding and no dropout. Gradients come from autograd if the weights require them. With
vocabulary V, hidden size H and attention units A, the weights are these; a matrix is applied as W @ x:

    embedding [V, H], of source and target
    encoder.0.forward, encoder.0.backward, encoder.1, .2, .3, decoder.0, .1, .2, .3, each with
        .weight_ih [4H, in], .weight_hh [4H, H], .bias_ih [4H], .bias_hh [4H], gates in the order input, forget, cell,
        output; `in` is H, but 2H in encoder.1 and decoder.1, .2, .3
    attention.query.weight, attention.key.weight [A, H], attention.v, attention.bias [A], attention.scale []
    classifier.weight [V, H], classifier.bias [V]
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

PADDING, BOS, EOS = 0, 2, 3
LAYERS = 4

State = tuple[Tensor, Tensor]
"""An LSTM's hidden and cell vector, each [H]."""


def loss(weights: dict[str, Tensor], pairs: list[tuple[list[int], list[int]]], smoothing: float = 0.1) -> Tensor:
    """Return the label-smoothed cross entropy summed over the predicted target tokens of all pairs: [].

    A pair is (source, [BOS, w1, ..., EOS]).
    """
    total = torch.zeros((), dtype=torch.float64)
    for source, target in pairs:
        labels = target[1:]
        assert PADDING not in labels
        rows = torch.log_softmax(logits(weights, source, target[:-1]), dim=-1)
        for row, label in zip(rows, labels, strict=True):
            total = total - (1 - smoothing) * row[label] - smoothing * row.sum() / len(row)
    return total


def logits(weights: dict[str, Tensor], source: list[int], target_inputs: list[int]) -> Tensor:
    """Return [len(target_inputs), V]: row t predicts the token after target_inputs[: t + 1]."""
    memory = _encode(weights, source)
    states = _start(weights)
    rows = []
    for token in target_inputs:
        row, _, states = _decode_step(weights, memory, states, token)
        rows.append(row)
    return torch.stack(rows)


def exhaustive_search(
    weights: dict[str, Tensor],
    source: list[int],
    max_length: int,
    score: Callable[[float, int, list[Tensor]], float],
) -> tuple[list[int], float]:
    """Return the best of all outputs of at most `max_length` tokens, including EOS, and its score.

    An output is any tokens but EOS, then EOS, which is part of the result; BOS is not. Its score is score(total log
    probability, length with EOS, attention), where attention holds the weights [S] of each predicted token, including
    EOS. Ties go to the first output in depth-first order.
    """
    best: tuple[list[int], float] = ([], -math.inf)

    def extend(prefix: list[int], prefix_log_probability: float, rows: list[Tensor], states: list[State]) -> None:
        nonlocal best
        row, attention, states = _decode_step(weights, memory, states, prefix[-1] if prefix else BOS)
        rows = [*rows, attention]
        for token, log_probability in enumerate(torch.log_softmax(row, dim=-1).tolist()):
            output, total = [*prefix, token], prefix_log_probability + log_probability
            if token == EOS:
                output_score = score(total, len(output), rows)
                if output_score > best[1]:
                    best = (output, output_score)
            elif len(output) < max_length:
                extend(output, total, rows, states)

    with torch.no_grad():
        memory = _encode(weights, source)
        extend([], 0.0, [], _start(weights))
    return best


def count_parameters(vocab_size: int, hidden_size: int) -> int:
    """Return the number of parameters with as many attention units as hidden units."""

    def lstm(inputs: int) -> int:
        return 4 * hidden_size * inputs + 4 * hidden_size * hidden_size + 2 * 4 * hidden_size

    encoder = 2 * lstm(hidden_size) + lstm(2 * hidden_size) + 2 * lstm(hidden_size)
    decoder = lstm(hidden_size) + 3 * lstm(2 * hidden_size)
    attention = 2 * hidden_size * hidden_size + 2 * hidden_size + 1
    classifier = vocab_size * hidden_size + vocab_size
    return vocab_size * hidden_size + encoder + decoder + attention + classifier


def _encode(weights: dict[str, Tensor], source: list[int]) -> list[Tensor]:
    """Return the encoder output of each token: S vectors [H]."""
    words = [weights["embedding"][token] for token in source]
    forward = _run(weights, "encoder.0.forward", words)
    backward = _run(weights, "encoder.0.backward", words[::-1])[::-1]
    xs = [torch.cat([f, b]) for f, b in zip(forward, backward, strict=True)]
    xs = _run(weights, "encoder.1", xs)
    for layer in range(2, LAYERS):
        hs = _run(weights, f"encoder.{layer}", xs)
        xs = [h + x for h, x in zip(hs, xs, strict=True)]
    return xs


def _decode_step(
    weights: dict[str, Tensor], memory: list[Tensor], states: list[State], token: int
) -> tuple[Tensor, Tensor, list[State]]:
    """Return logits [V], attention [S] and the layers' new states."""
    new_states = [_cell(weights, "decoder.0", weights["embedding"][token], states[0])]
    x = new_states[0][0]
    attention = _attention(weights, x, memory)
    context = sum(weight * vector for weight, vector in zip(attention, memory, strict=True))
    for layer in range(1, LAYERS):
        new_states.append(_cell(weights, f"decoder.{layer}", torch.cat([x, context]), states[layer]))
        h = new_states[layer][0]
        x = h if layer == 1 else h + x
    return weights["classifier.weight"] @ x + weights["classifier.bias"], attention, new_states


def _attention(weights: dict[str, Tensor], query: Tensor, memory: list[Tensor]) -> Tensor:
    """Return the weights [S] of normalized Bahdanau attention."""
    v = weights["attention.v"]
    v = v / torch.sqrt((v * v).sum()) * weights["attention.scale"]
    q = weights["attention.query.weight"] @ query
    scores = []
    for key in memory:
        k = weights["attention.key.weight"] @ key
        scores.append((v * torch.tanh(q + k + weights["attention.bias"])).sum())
    return torch.softmax(torch.stack(scores), dim=0)


def _run(weights: dict[str, Tensor], name: str, xs: list[Tensor]) -> list[Tensor]:
    """Return the LSTM's hidden vectors [H] over a sequence of inputs [in], from a zero state."""
    state = _zero(weights)
    hs = []
    for x in xs:
        state = _cell(weights, name, x, state)
        hs.append(state[0])
    return hs


def _cell(weights: dict[str, Tensor], name: str, x: Tensor, state: State) -> State:
    h, c = state
    from_input = weights[f"{name}.weight_ih"] @ x + weights[f"{name}.bias_ih"]
    from_hidden = weights[f"{name}.weight_hh"] @ h + weights[f"{name}.bias_hh"]
    i, f, g, o = (from_input + from_hidden).reshape(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _start(weights: dict[str, Tensor]) -> list[State]:
    return [_zero(weights) for _ in range(LAYERS)]


def _zero(weights: dict[str, Tensor]) -> State:
    hidden_size = weights["embedding"].shape[1]
    return torch.zeros(hidden_size, dtype=torch.float64), torch.zeros(hidden_size, dtype=torch.float64)
