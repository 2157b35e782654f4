"""GNMT against a float64 transcription of its formulas, and its search against all that could be said."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from timetrial.workloads.common.translation.beam_search import EndedStay, search
from timetrial.workloads.common.translation.parallel_data import Side
from timetrial.workloads.gnmt.data import Sentences
from timetrial.workloads.gnmt.model import GNMT
from timetrial.workloads.gnmt.workload import _Decoder, ranked

spec = importlib.util.spec_from_file_location("gnmt_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

PAIRS = [([2, 4, 5, 6, 3], [2, 7, 3]), ([2, 9, 3], [2, 8, 10, 5, 4, 3]), ([2, 4, 4, 8, 7, 5, 3], [2, 6, 9, 3])]


def model(rows=11, width=6, seed=1):
    torch.manual_seed(seed)
    made = GNMT(rows, width, dropout=0.0, smoothing=0.1).double()
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return made


def named_as_in_the_oracle(net):
    """{the oracle's name: our parameter}."""
    found = {}
    for name, weight in net.named_parameters():
        name = name.replace("encoder.0.ahead", "encoder.0.forward").replace("encoder.0.back.", "encoder.0.backward.")
        found[name.replace("embedding.weight", "embedding").removesuffix("_l0")] = weight
    return found


class Batches(Sentences):
    """Packs given pairs; nothing is prepared or read."""

    def __init__(self, pairs):
        self._device, made = torch.device("cpu"), []
        for side in zip(*pairs, strict=True):
            lengths = np.array([len(ids) for ids in side])
            flat = torch.tensor([number for ids in side for number in ids[1:-1]] or [0], dtype=torch.int32)
            starts = torch.from_numpy(np.cumsum(lengths - 2) - (lengths - 2))
            made.append((Side(flat, starts, torch.from_numpy(lengths)), lengths))
        self.sides, lengths = zip(*made, strict=True)
        self.lengths = np.stack(lengths)

    def batch(self):
        return self.pack(np.arange(self.lengths.shape[1]), self.sides)


def test_loss_and_gradients_are_the_formulas():
    net = model()
    loss = net(Batches(PAIRS).batch())
    loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in named_as_in_the_oracle(net).items()}
    expected = oracle.loss(weights, PAIRS, 0.1)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    for name, weight in named_as_in_the_oracle(net).items():
        torch.testing.assert_close(weight.grad, weights[name].grad, rtol=1e-8, atol=1e-10, msg=name)


def test_the_full_model_has_the_references_parameters():
    with torch.device("meta"):
        full = GNMT(32320, 1024, 0.2, 0.1)
    assert sum(weight.numel() for weight in full.parameters()) == oracle.count_parameters(32320, 1024) == 160_671_297


def test_weights_start_as_the_reference_draws_them():
    net = GNMT(50, 32, 0.2, 0.1)
    for name, weight in net.named_parameters():
        if ".bias_hh" in name or name == "attention.bias":
            assert not weight.any(), name
        elif name == "attention.scale":
            assert weight.item() == pytest.approx(32**-0.5)
        else:
            assert 0.08 < weight.abs().max() <= 0.1, name


@pytest.mark.parametrize("seed", range(4))
def test_decoding_step_by_step_gives_the_same_logits(seed):
    net = model(seed=seed).eval()
    batch = Batches(PAIRS).batch()
    with torch.no_grad():
        decoder = _Decoder(net, net.encode(batch.source, batch.lengths[0]))
        said = torch.randint(4, 11, (3, 4), generator=torch.Generator().manual_seed(seed))
        said[:, 0] = 2
        steps = [decoder.step(said[:, place])[0] for place in range(4)]
    for row, (ids, _) in enumerate(sorted(PAIRS, key=lambda pair: -len(pair[0]))):
        expected = oracle.logits(named_as_in_the_oracle(net), ids, said[row].tolist())
        torch.testing.assert_close(torch.stack([step[row] for step in steps]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_best_of_all(seed):
    """Beams as wide as there are hypotheses lose none; sentences of a batch do not touch each other."""
    net, longest, beta = model(rows=5, seed=seed).eval(), 4, 0.1
    sources = [[2, 4, 4, 1, 3], [2, 4, 1, 3], [2, 4, 3]]
    with torch.no_grad():
        batch = Batches([(ids, [2, 3]) for ids in sources]).batch()
        memory = net.encode(batch.source, batch.lengths[0])

        beams = EndedStay(3, 5**longest, 3, ranked(0.6, beta), batch.source.longest, torch.device("cpu"))
        begin = torch.full((3 * 5**longest,), 2)
        found = search(_Decoder(net, memory), beams, begin, longest)
        for ids, best in zip(sources, found, strict=True):

            def score(total, length, rows):
                seen = torch.stack(rows).sum(0).clamp(max=1).log().sum()
                return total / ((5 + length + 1) / 6) ** 0.6 + beta * float(seen)  # the begin counts

            expected, _ = oracle.best_by_exhaustion(named_as_in_the_oracle(net), ids, longest, score)
            assert best == expected


def test_a_source_piece_that_was_never_looked_at_costs_nothing():
    """As in the reference; by the formula alone all would be worth minus infinity, and the first be taken."""
    coverage = torch.tensor([[[0.5, 0.0], [2.0, 0.0]]])
    worth = ranked(1.0, 0.1)(torch.tensor([[-1.0, -1.0]]), torch.tensor([[0.0, 6.0]]), coverage)
    torch.testing.assert_close(worth, torch.tensor([[-1.0 + 0.1 * math.log(0.5), -0.5]]))


def test_what_every_layer_reads_is_dropped_from_in_training(monkeypatch):
    """Eight inputs of layers, of embeddings or of layers below with their contexts; and nothing outside of training."""
    widths = []
    monkeypatch.setattr(GNMT, "_lstm", lambda self, layer, x, side: torch.zeros(len(side.places), 6).double())
    monkeypatch.setattr(F, "dropout", lambda x, share, training: (widths.append(x.shape[1] * training), x)[1])
    net = model()
    for training, expected in ((True, [6, 12, 6, 6, 6, 12, 12, 12]), (False, [0] * 8)):
        widths.clear()
        net.train(training)(Batches(PAIRS).batch())
        assert widths == expected
