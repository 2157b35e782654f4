"""The Transformer against a float64 oracle, and its beam search against an exhaustive search."""

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from timetrial.runner.training import gradient_reduction
from timetrial.runner.training.distributed import World
from timetrial.runner.training.gradient_reduction import GradientReduction
from timetrial.workloads.common.translation.beam_search import BeamSearch, SplitBeam
from timetrial.workloads.common.translation.tokenized_text import TokenizedSide
from timetrial.workloads.transformer import decoder
from timetrial.workloads.transformer.data import PackedPairs, TransformerData
from timetrial.workloads.transformer.decoder import TransformerDecoder
from timetrial.workloads.transformer.model import Transformer

spec = importlib.util.spec_from_file_location("transformer_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

NUM_LAYERS, NUM_HEADS = 2, 2


def make_model(vocab_size=11, hidden_size=8, seed=1):
    torch.manual_seed(seed)
    sizes = (vocab_size, hidden_size, NUM_HEADS, 16, NUM_LAYERS)
    model = Transformer(*sizes, dropout=0.0, label_smoothing=0.1).double()
    with torch.no_grad():
        for weight in model.parameters():  # norms and biases would otherwise be ones and zeros
            weight += 0.1 * torch.randn_like(weight)
    return model


class GivenPairs(TransformerData):
    """Packs given pairs; nothing is prepared or read."""

    def __init__(self, pairs, padded_size=0):
        class Settings:
            max_length = 9

        self._settings, self._device, self._size = Settings(), torch.device("cpu"), padded_size
        self.corpora = []
        for side in zip(*pairs, strict=True):
            lengths = np.array([len(ids) for ids in side])
            flat = torch.tensor([number for ids in side for number in ids[:-1]] or [0], dtype=torch.int32)
            starts = torch.from_numpy(np.cumsum(lengths - 1) - (lengths - 1))
            self.corpora.append((TokenizedSide(flat, starts, torch.from_numpy(lengths)), lengths))

    def pairs(self):
        numbers = np.arange(len(self.corpora[0][1]))
        packed = [
            self._pack(numbers, lengths, corpus, self._size, 40 if self._size else 0)
            for corpus, lengths in self.corpora
        ]
        return PackedPairs(*packed)


PAIRS = [([4, 5, 6, 1], [7, 3, 1]), ([9, 1], [2, 2, 8, 10, 5, 1]), ([3, 3, 2, 8, 7, 4, 1], [6, 1])]


LAYERS_PER_GRAPH = "timetrial.workloads.transformer.model._LAYERS_PER_GRAPH"


@pytest.mark.parametrize(("padded_size", "layers_per_graph"), [(0, 3), (300, 3), (0, 1)])
def test_loss_and_gradients_equal_oracle(padded_size, layers_per_graph, monkeypatch):
    """With `padded_size`, the batch is filled up with padding and empty sentences."""
    monkeypatch.setattr(LAYERS_PER_GRAPH, layers_per_graph)
    model = make_model()
    batch = GivenPairs(PAIRS, padded_size).pairs()
    if padded_size:
        assert len(batch.source.ids) == 384
    loss = model(batch)
    loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    expected = oracle.loss(weights, PAIRS, NUM_LAYERS, NUM_HEADS, 0.1)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, weights[name].grad, rtol=1e-8, atol=1e-10, msg=name)


def test_parameter_count_equals_the_reference():
    with torch.device("meta"):
        model = Transformer(33708, 1024, 16, 4096, 6, dropout=0.1, label_smoothing=0.1)
    assert sum(weight.numel() for weight in model.parameters()) == oracle.count_parameters(33708, 1024, 4096, 6)
    assert oracle.count_parameters(33708, 1024, 4096, 6) == 210_804_736


def test_projections_are_initialized_separately():
    torch.manual_seed(1)
    layer = Transformer(50, 64, 4, 256, 1, dropout=0.0, label_smoothing=0.1).decoder[0]
    for weight, bound in ((layer.qkv.weight, math.sqrt(6 / 128)), (layer.ffn_up.weight, math.sqrt(6 / 320))):
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


@pytest.fixture
def small_cache(monkeypatch):
    """Make the key-value cache grow in the middle of a search."""
    monkeypatch.setattr(decoder, "_CACHE_STEP", 3)


@pytest.mark.parametrize("seed", range(4))
def test_incremental_decoding_equals_oracle(seed, small_cache):
    model = make_model(seed=seed).eval()
    source = GivenPairs(PAIRS).pairs().source
    model_decoder = TransformerDecoder(model, source)
    targets = torch.randint(2, 11, (3, 4), generator=torch.Generator().manual_seed(seed))
    steps = [model_decoder.step(torch.zeros(3, dtype=torch.int64))[0]]
    steps += [model_decoder.step(targets[:, position])[0] for position in range(4)]
    weights = dict(model.named_parameters())
    for row, (ids, _) in enumerate(PAIRS):
        expected = oracle.logits(weights, ids, targets[row].tolist(), NUM_LAYERS, NUM_HEADS)
        torch.testing.assert_close(torch.stack([step[row] for step in steps]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_wide_beam_equals_exhaustive_search(seed, small_cache):
    """A beam that holds all hypotheses loses none, and sentences of a batch do not affect each other."""
    model, max_length = make_model(vocab_size=5, seed=seed).eval(), 4
    sources = [[2, 3, 1], [4, 1], [3, 4, 2, 2, 1]]
    with torch.no_grad():
        source = GivenPairs([(ids, [1]) for ids in sources]).pairs().source
        beam = SplitBeam(3, 5**max_length, 1, 0.6, max_length, torch.device("cpu"))
        start_ids = torch.zeros(3 * 5**max_length, dtype=torch.int64)
        translations = BeamSearch(TransformerDecoder(model, source), beam, start_ids, max_length).run()
        weights = dict(model.named_parameters())
        for ids, translation in zip(sources, translations, strict=True):
            expected, _ = oracle.exhaustive_search(
                weights,
                ids,
                max_length,
                lambda total, length, _: total / ((5 + length) / 6) ** 0.6,
                NUM_LAYERS,
                NUM_HEADS,
            )
            assert translation == expected


def test_dropout_applies_to_embeddings_sublayers_and_attention(monkeypatch):
    """Both embeddings; in each layer the attention outputs, ReLU and feed-forward output; and attention weights."""
    applied, of_attention, attend = [], [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "dropout", lambda x, p, training: (applied.append(p * training), x)[1])
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *x, dropout_p, **options: (of_attention.append(dropout_p), attend(*x, **options))[1],
    )
    model = Transformer(11, 8, NUM_HEADS, 16, NUM_LAYERS, dropout=0.3, label_smoothing=0.1)
    for training, p in ((True, 0.3), (False, 0.0)):
        applied.clear()
        of_attention.clear()
        model.train(training)(GivenPairs(PAIRS).pairs())
        assert applied == [p] * (2 + NUM_LAYERS * (3 + 4))
        assert of_attention == [p] * (NUM_LAYERS * (1 + 2))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch.compile itself
def test_layers_of_a_kind_are_compiled_once(monkeypatch):
    monkeypatch.setattr(LAYERS_PER_GRAPH, 2)
    numbers = []
    for num_layers in (2, 4, 6, 3):
        compiled = []

        def backend(graph, example_inputs, compiled=compiled):
            compiled.append(graph)
            return graph.forward

        torch.compiler.reset()
        model = Transformer(11, 8, NUM_HEADS, 16, num_layers, dropout=0.0, label_smoothing=0.1).double()
        expected = model(GivenPairs(PAIRS).pairs())
        model.compile(backend=backend, dynamic=False)
        torch.testing.assert_close(model(GivenPairs(PAIRS).pairs()), expected)
        numbers.append(len(compiled))
    assert numbers == [numbers[0]] * 4


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch.compile itself
@pytest.mark.parametrize("layers_per_graph", [1, 3])
def test_gradients_of_a_part_are_exchanged_before_the_part_before_has_its_own(layers_per_graph, monkeypatch):
    """A compiled backward pass yields its gradients at its end, and buckets are exchanged in their order."""
    monkeypatch.setattr(LAYERS_PER_GRAPH, layers_per_graph)
    log = []

    def all_reduce(flat, group, async_op):
        log.append("exchange")
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(gradient_reduction, "_FIRST_BUCKET_BYTES", 256)
    monkeypatch.setattr(gradient_reduction, "_BUCKET_BYTES", 1024)
    monkeypatch.setattr(gradient_reduction.dist, "all_reduce", all_reduce)
    model = make_model()
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: log.append(name))
    reduction = GradientReduction(model.parameters(), World(), overlap=True)
    model.compile(backend="aot_eager")
    for _ in range(2):
        log.clear()
        model(GivenPairs(PAIRS).pairs()).backward()
        reduction.finish()
        model.zero_grad(set_to_none=True)
    first = log.index(next(entry for entry in log if entry.startswith("encoder")))
    assert log[:first].count("exchange") >= log.count("exchange") / 3
    assert not any(entry.startswith("decoder") for entry in log[first:])
    last_layer, first_layer = (
        [index for index, entry in enumerate(log) if entry.startswith(f"decoder.{number}.")] for number in (1, 0)
    )
    exchanged = log[min(last_layer) : min(first_layer)].count("exchange")
    assert exchanged > 0 if layers_per_graph == 1 else exchanged == 0
