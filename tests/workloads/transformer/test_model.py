"""The Transformer against a float64 transcription of its formulas, and its search against all that could be said."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from timetrial.workloads.common.translation.beam_search import EndedGoApart, search
from timetrial.workloads.common.translation.parallel_data import Side
from timetrial.workloads.transformer import decoder
from timetrial.workloads.transformer.data import Pairs, TokenBatches
from timetrial.workloads.transformer.decoder import Decoder
from timetrial.workloads.transformer.model import Transformer

spec = importlib.util.spec_from_file_location("transformer_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

LAYERS, HEADS = 2, 2


def model(rows=11, width=8, seed=1, dtype=torch.float64):
    torch.manual_seed(seed)
    made = Transformer(rows, width, HEADS, 16, LAYERS, dropout=0.0, smoothing=0.1).to(dtype)
    with torch.no_grad():
        for weight in made.parameters():  # norms and biases would otherwise be ones and zeros
            weight += 0.1 * torch.randn_like(weight)
    return made


class Batches(TokenBatches):
    """Packs given pairs; nothing is prepared or read."""

    def __init__(self, pairs, room=0):
        class Settings:
            max_length = 9

        self._settings, self._device, self._room = Settings(), torch.device("cpu"), room
        self.sides = []
        for side in zip(*pairs, strict=True):
            lengths = np.array([len(ids) for ids in side])
            flat = torch.tensor([number for ids in side for number in ids[:-1]] or [0], dtype=torch.int32)
            starts = torch.from_numpy(np.cumsum(lengths - 1) - (lengths - 1))
            self.sides.append((Side(flat, starts, torch.from_numpy(lengths)), lengths))

    def pairs(self):
        numbers = np.arange(len(self.sides[0][1]))
        made = [
            self._packed(numbers, lengths, side, self._room, 40 if self._room else 0) for side, lengths in self.sides
        ]
        return Pairs(*made)


PAIRS = [([4, 5, 6, 1], [7, 3, 1]), ([9, 1], [2, 2, 8, 10, 5, 1]), ([3, 3, 2, 8, 7, 4, 1], [6, 1])]


@pytest.mark.parametrize("room", [0, 300])
def test_loss_and_gradients_are_the_formulas(room):
    """With `room`, the batch is filled up with sentences of padding and of nothing."""
    net = model()
    batch = Batches(PAIRS, room).pairs()
    if room:
        assert len(batch.source.ids) == 384
    loss = net(batch)
    loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in net.named_parameters()}
    expected = oracle.loss(weights, PAIRS, LAYERS, HEADS, 0.1)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    for name, weight in net.named_parameters():
        torch.testing.assert_close(weight.grad, weights[name].grad, rtol=1e-8, atol=1e-10, msg=name)


def test_the_big_model_has_the_references_parameters():
    with torch.device("meta"):
        big = Transformer(33708, 1024, 16, 4096, 6, dropout=0.1, smoothing=0.1)
    assert sum(weight.numel() for weight in big.parameters()) == oracle.count_parameters(33708, 1024, 4096, 6)
    assert oracle.count_parameters(33708, 1024, 4096, 6) == 210_804_736


def test_every_projection_is_drawn_by_itself():
    torch.manual_seed(1)
    layer = Transformer(50, 64, 4, 256, 1, dropout=0.0, smoothing=0.1).decoder[0]
    for weight, reach in ((layer.qkv.weight, math.sqrt(6 / 128)), (layer.filter.weight, math.sqrt(6 / 320))):
        assert weight.abs().max() <= reach
        assert weight.std().item() == pytest.approx(reach / math.sqrt(3), rel=0.03)


@pytest.fixture
def small_rooms(monkeypatch):
    """What was said outgrows its room in the middle of a search."""
    monkeypatch.setattr(decoder, "_ROOM", 3)


@pytest.mark.parametrize("seed", range(4))
def test_decoding_step_by_step_gives_the_same_logits(seed, small_rooms):
    net = model(seed=seed).eval()
    source = Batches(PAIRS).pairs().source
    search_of_three = Decoder(net, source)
    said = torch.randint(2, 11, (3, 4), generator=torch.Generator().manual_seed(seed))
    steps = [search_of_three.step(torch.zeros(3, dtype=torch.int64))[0]]
    steps += [search_of_three.step(said[:, place])[0] for place in range(4)]
    weights = dict(net.named_parameters())
    for row, (ids, _) in enumerate(PAIRS):
        expected = oracle.logits(weights, ids, said[row].tolist(), LAYERS, HEADS)
        torch.testing.assert_close(torch.stack([step[row] for step in steps]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_best_of_all(seed, small_rooms):
    """Beams as wide as there are hypotheses lose none; sentences of a batch do not touch each other."""
    net, longest = model(rows=5, seed=seed).eval(), 4
    sources = [[2, 3, 1], [4, 1], [3, 4, 2, 2, 1]]
    with torch.no_grad():
        source = Batches([(ids, [1]) for ids in sources]).pairs().source
        beams = EndedGoApart(3, 5**longest, 1, 0.6, longest, torch.device("cpu"))
        begin = torch.zeros(3 * 5**longest, dtype=torch.int64)
        found = search(Decoder(net, source), beams, begin, longest)
        weights = dict(net.named_parameters())
        for ids, best in zip(sources, found, strict=True):
            expected, _ = oracle.best_by_exhaustion(
                weights, ids, longest, lambda total, length, _: total / ((5 + length) / 6) ** 0.6, LAYERS, HEADS
            )
            assert best == expected


def test_every_sublayer_and_both_embeddings_are_dropped_from(monkeypatch):
    """Two embeddings; of a layer what attention gives, the filter and what it gives; and the weights of attention."""
    places, weights, attend = [], [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "dropout", lambda x, share, training: (places.append(share * training), x)[1])
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *x, dropout_p, **rest: (weights.append(dropout_p), attend(*x, **rest))[1],
    )
    net = Transformer(11, 8, HEADS, 16, LAYERS, dropout=0.3, smoothing=0.1)
    for training, share in ((True, 0.3), (False, 0.0)):
        places.clear()
        weights.clear()
        net.train(training)(Batches(PAIRS).pairs())
        assert places == [share] * (2 + LAYERS * (3 + 4))
        assert weights == [share] * (LAYERS * (1 + 2))
