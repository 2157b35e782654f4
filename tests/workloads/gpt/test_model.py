"""GPT against a float64 oracle: loss, gradients, causality, initialization, size and dropout."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from timetrial.workloads.common.translation import fused_linear_cross_entropy
from timetrial.workloads.gpt.model import GPT

spec = importlib.util.spec_from_file_location("gpt_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

VOCABULARY, CONTEXT, HIDDEN_SIZE, NUM_HEADS, NUM_LAYERS = 11, 7, 12, 4, 2


def make_model(*, bias=True, dropout=0.0, seed=1):
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, CONTEXT, HIDDEN_SIZE, NUM_HEADS, NUM_LAYERS, dropout=dropout, bias=bias).double()
    with torch.no_grad():
        for weight in model.parameters():  # norms and biases would otherwise be ones and zeros, attention uniform
            weight += 0.4 * torch.randn_like(weight)
    return model


def make_windows(count=3, length=CONTEXT + 1, seed=1):
    return torch.randint(VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [CONTEXT, 4])
def test_loss_and_gradients_equal_oracle(length, bias):
    """With windows as long as the context and with shorter ones."""
    model, windows = make_model(bias=bias), make_windows(length=length + 1)
    loss = model(windows)
    loss.backward()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    assert any(name.endswith("bias") for name in weights) == bias
    expected = oracle.loss(weights, windows.tolist(), NUM_LAYERS, NUM_HEADS)
    expected.backward()
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for name, weight in model.named_parameters():
        gradient = weights[name].grad
        assert gradient.norm() > 1e-3, name
        assert (weight.grad - gradient).norm() <= 1e-9 * gradient.norm(), name


def test_states_depend_on_no_later_token():
    model, windows = make_model(), make_windows(length=CONTEXT)
    before = model.hidden_states(windows)
    for changed in range(CONTEXT):
        other = windows.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCABULARY
        difference = (model.hidden_states(other) - before).abs().amax((0, 2))
        assert not difference[:changed].any(), changed
        assert (difference[changed:] > 1e-6).all(), changed


def test_windows_do_not_affect_each_other():
    model, windows = make_model(), make_windows(count=4)
    one_by_one = sum(model(window[None]) for window in windows)
    torch.testing.assert_close(model(windows), one_by_one, rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_layers", [1, 8])
def test_initialization(num_layers):
    torch.manual_seed(1)
    model = GPT(256, 128, 64, 4, num_layers, dropout=0.0, bias=True)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            ones = "norm" in name and name.endswith("weight")
            assert (weight == float(ones)).all(), name
            continue
        ends_branch = name.split(".")[-2:] in (["out", "weight"], ["ffn_down", "weight"])
        expected = 0.02 / (2 * num_layers) ** 0.5 if ends_branch else 0.02
        assert weight.std().item() == pytest.approx(expected, rel=0.05), name
        assert abs(weight.mean().item()) < 4 * expected / weight.numel() ** 0.5, name


def test_untrained_model_predicts_uniformly():
    torch.manual_seed(1)
    model = GPT(512, 32, 64, 4, 2, dropout=0.0, bias=True)
    windows = torch.randint(512, (8, 33))
    assert model(windows).item() / (8 * 32) == pytest.approx(torch.tensor(512.0).log().item(), rel=0.02)


@pytest.mark.parametrize(
    ("sizes", "bias", "expected"),
    [
        ((50257, 1024, 768, 12), True, 124_439_808),  # the published GPT-2
        ((50304, 1024, 768, 12), True, 124_475_904),  # the vocabulary as a multiple of 64
        ((50257, 1024, 1600, 48), True, 1_557_611_200),
        ((65, 256, 384, 6), False, 10_745_088),
    ],
)
def test_parameter_count(sizes, bias, expected):
    vocab_size, context, hidden_size, num_layers = sizes
    with torch.device("meta"):
        model = GPT(vocab_size, context, hidden_size, hidden_size // 64, num_layers, dropout=0.1, bias=bias)
    assert sum(weight.numel() for weight in model.parameters()) == expected
    assert oracle.count_parameters(*sizes, bias) == expected


def test_dropout_applies_in_training_only(monkeypatch):
    """To the embeddings, both sublayers of each layer, and the attention weights."""
    applied, of_attention, attend = [], [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "dropout", lambda x, p, training: (applied.append(p * training), x)[1])
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *x, dropout_p, **options: (of_attention.append(dropout_p), attend(*x, **options))[1],
    )
    model = make_model(dropout=0.3)
    for training, p in ((True, 0.3), (False, 0.0)):
        applied.clear()
        of_attention.clear()
        model.train(training)(make_windows())
        assert applied == [p] * (1 + 2 * NUM_LAYERS)
        assert of_attention == [p] * NUM_LAYERS


def test_dropout_changes_the_loss_in_training_only():
    model, windows = make_model(dropout=0.5), make_windows()
    assert model(windows) != model(windows)
    in_evaluation = model.eval()(windows).item()
    assert model(windows).item() == in_evaluation
    # Without dropout, biases are added in another order.
    assert make_model(dropout=0.0)(windows).item() == pytest.approx(in_evaluation, rel=1e-12)


@pytest.mark.parametrize("logits_per_chunk", [1 << 28, 5 * VOCABULARY])
def test_loss_without_gradients_equals_the_loss_with_them(monkeypatch, logits_per_chunk):
    monkeypatch.setattr(fused_linear_cross_entropy, "_LOGITS_PER_CHUNK", logits_per_chunk)
    model, windows = make_model().eval(), make_windows()
    with_gradients = model(windows)
    with torch.no_grad():
        without = model(windows)
    assert with_gradients.requires_grad
    assert not without.requires_grad
    assert without.item() == pytest.approx(with_gradients.item(), rel=1e-12)
