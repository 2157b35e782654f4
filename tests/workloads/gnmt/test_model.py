"""GNMT against a float64 oracle, and its beam search against an exhaustive search."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from timetrial.workloads.common.translation.beam_search import BeamSearch, SharedBeam
from timetrial.workloads.common.translation.tokenized_text import TokenizedPairs, TokenizedSide
from timetrial.workloads.gnmt.data import GNMTData
from timetrial.workloads.gnmt.model import GNMT
from timetrial.workloads.gnmt.workload import GNMTDecoder, length_coverage_score

spec = importlib.util.spec_from_file_location("gnmt_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

PAIRS = [([2, 4, 5, 6, 3], [2, 7, 3]), ([2, 9, 3], [2, 8, 10, 5, 4, 3]), ([2, 4, 4, 8, 7, 5, 3], [2, 6, 9, 3])]


def make_model(vocab_size=11, hidden_size=6, seed=1):
    torch.manual_seed(seed)
    model = GNMT(vocab_size, hidden_size, dropout=0.0, label_smoothing=0.1).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


def oracle_weights(model):
    """Return the parameters under their names in the oracle."""
    weights = {}
    for name, weight in model.named_parameters():
        name = name.replace("_lstm.", ".").replace("embedding.weight", "embedding")
        weights[name.removesuffix("_l0")] = weight
    return weights


class GivenPairs(GNMTData):
    """Packs given pairs; nothing is prepared or read."""

    def __init__(self, pairs, pad_to_bucket=False):
        self._settings = GNMTData.Settings([""], [""], max_length=10, vocabulary_size=1, pad_to_bucket=pad_to_bucket)
        self._device, sides = torch.device("cpu"), []
        for side in zip(*pairs, strict=True):
            lengths = np.array([len(ids) for ids in side])
            flat = torch.tensor([number for ids in side for number in ids[1:-1]] or [0], dtype=torch.int32)
            starts = torch.from_numpy(np.cumsum(lengths - 2) - (lengths - 2))
            sides.append(TokenizedSide(flat, starts, torch.from_numpy(lengths)))
        self.corpus = TokenizedPairs(*sides, np.stack([side.lengths.numpy() for side in sides]))

    def batch(self):
        return self.pack(np.arange(self.corpus.lengths.shape[1]), self.corpus)


@pytest.mark.parametrize("pad_to_bucket", [False, True])
def test_loss_and_gradients_equal_oracle(pad_to_bucket):
    model = make_model()
    batch = GivenPairs(PAIRS, pad_to_bucket).batch()
    assert (batch.labels < 0).any() == pad_to_bucket
    loss = model(batch)
    loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in oracle_weights(model).items()}
    expected = oracle.loss(weights, PAIRS, 0.1)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    for name, weight in oracle_weights(model).items():
        torch.testing.assert_close(weight.grad, weights[name].grad, rtol=1e-8, atol=1e-10, msg=name)


def test_parameter_count_equals_the_reference():
    with torch.device("meta"):
        model = GNMT(32320, 1024, 0.2, 0.1)
    assert sum(weight.numel() for weight in model.parameters()) == oracle.count_parameters(32320, 1024) == 160_671_297


def test_initialization_equals_the_reference():
    model = GNMT(50, 32, 0.2, 0.1)
    for name, weight in model.named_parameters():
        if ".bias_hh" in name or name == "attention.bias":
            assert not weight.any(), name
        elif name == "attention.scale":
            assert weight.item() == pytest.approx(32**-0.5)
        else:
            assert 0.08 < weight.abs().max() <= 0.1, name


@pytest.mark.parametrize("seed", range(4))
def test_incremental_decoding_equals_oracle(seed):
    model = make_model(seed=seed).eval()
    batch = GivenPairs(PAIRS).batch()
    with torch.no_grad():
        decoder = GNMTDecoder(model, model.encode(batch.source, batch.lengths[0]))
        targets = torch.randint(4, 11, (3, 4), generator=torch.Generator().manual_seed(seed))
        targets[:, 0] = 2
        steps = [decoder.step(targets[:, position])[0] for position in range(4)]
    for row, (ids, _) in enumerate(sorted(PAIRS, key=lambda pair: -len(pair[0]))):
        expected = oracle.logits(oracle_weights(model), ids, targets[row].tolist())
        torch.testing.assert_close(torch.stack([step[row] for step in steps]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_wide_beam_equals_exhaustive_search(seed):
    """A beam that holds all hypotheses loses none, and sentences of a batch do not affect each other."""
    model, max_length = make_model(vocab_size=5, seed=seed).eval(), 4
    sources = [[2, 4, 4, 1, 3], [2, 4, 1, 3], [2, 4, 3]]
    with torch.no_grad():
        batch = GivenPairs([(ids, [2, 3]) for ids in sources]).batch()
        memory = model.encode(batch.source, batch.lengths[0])

        score = length_coverage_score(0.6, 0.0)
        beam = SharedBeam(3, 5**max_length, 3, score, batch.source.max_length, torch.device("cpu"))
        start_ids = torch.full((3 * 5**max_length,), 2)
        translations = BeamSearch(GNMTDecoder(model, memory), beam, start_ids, max_length).run()
        for ids, translation in zip(sources, translations, strict=True):

            def oracle_score(total, length, rows):
                return total / ((5 + length + 1) / 6) ** 0.6  # BEGIN counts

            expected, _ = oracle.exhaustive_search(oracle_weights(model), ids, max_length, oracle_score)
            assert translation == expected


def search_one(weights, ids, beam_size, max_length, beta, coverage_moves):
    """Beam search of one sentence with lists; the coverage moves with the hypotheses, or stays at its place."""
    memory = oracle._encode(weights, ids)
    states = [oracle._start(weights)]
    coverage = [torch.zeros(len(ids), dtype=torch.float64) for _ in range(beam_size)]
    beams = [(0.0, [])]
    for _ in range(max_length):
        candidates, attended, new_states = [], [torch.zeros(len(ids))] * beam_size, []
        for place, ((total, output), state) in enumerate(zip(beams, states, strict=True)):
            if output and output[-1] == oracle.EOS:
                candidates.append((total, place, output))
                new_states.append(state)
                continue
            row, attended[place], state = oracle._decode_step(weights, memory, state, output[-1] if output else 2)
            new_states.append(state)
            for token, value in enumerate(torch.log_softmax(row, dim=-1).tolist()):
                candidates.append((total + value, place, [*output, token]))
        if len(beams) == 1:  # all beams are equal at first
            attended = [attended[0]] * beam_size
        coverage = [old + new for old, new in zip(coverage, attended, strict=True)]
        best = sorted(candidates, key=lambda candidate: -candidate[0])[:beam_size]
        beams = [(total, output) for total, _, output in best]
        states = [new_states[place] for _, place, _ in best]
        if coverage_moves:
            coverage = [coverage[place] for _, place, _ in best]
    scores = [
        total / ((5 + len(output) + 1) / 6) ** 0.6 + beta * float(seen.clamp(max=1).log().sum())
        for (total, output), seen in zip(beams, coverage, strict=True)
    ]
    return beams[int(np.argmax(scores))][1]


@torch.no_grad()
def test_coverage_stays_at_its_place_in_the_beam():
    """As in the reference. A coverage that moves with the hypotheses would choose others."""
    differ = 0
    for seed in range(8):
        model, ids, beta, max_length = make_model(vocab_size=6, seed=seed).eval(), [2, 4, 1, 5, 3], 1.0, 6
        model.attention.scale *= 12  # sharp attention, so that hypotheses differ in their coverage
        batch = GivenPairs([(ids, [2, 3])]).batch()
        memory = model.encode(batch.source, batch.lengths[0])
        beam = SharedBeam(1, 3, 3, length_coverage_score(0.6, beta), len(ids), torch.device("cpu"))
        (translation,) = BeamSearch(GNMTDecoder(model, memory), beam, torch.full((3,), 2), max_length).run()
        weights = oracle_weights(model)
        at_place, moving = (search_one(weights, ids, 3, max_length, beta, moves) for moves in (False, True))
        assert translation == at_place
        differ += at_place != moving
    assert differ


def test_score_ignores_source_tokens_without_attention():
    """As in the reference; by the formula alone all scores would be minus infinity."""
    coverage = torch.tensor([[[0.5, 0.0], [2.0, 0.0]]])
    scores = length_coverage_score(1.0, 0.1)(torch.tensor([[-1.0, -1.0]]), torch.tensor([[0.0, 6.0]]), coverage)
    torch.testing.assert_close(scores, torch.tensor([[-1.0 + 0.1 * math.log(0.5), -0.5]]))


def test_dropout_applies_to_all_layer_inputs_in_training(monkeypatch):
    """The layers have eight inputs: embeddings, or the layer below with its context. In evaluation none is dropped."""
    widths = []
    monkeypatch.setattr(GNMT, "_lstm", lambda self, layer, x, sentences: torch.zeros(len(sentences.ids), 6).double())
    monkeypatch.setattr(F, "dropout", lambda x, p, training: (widths.append(x.shape[1] * training), x)[1])
    model = make_model()
    for training, expected in ((True, [6, 12, 6, 6, 6, 12, 12, 12]), (False, [0] * 8)):
        widths.clear()
        model.train(training)(GivenPairs(PAIRS).batch())
        assert widths == expected
