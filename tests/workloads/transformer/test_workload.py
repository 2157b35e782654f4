"""The Transformer's learning rate schedule, settings and vocabulary."""

from types import SimpleNamespace

import pytest

from timetrial.workloads.transformer.vocabulary import SharedVocabulary
from timetrial.workloads.transformer.workload import TransformerWorkload

REQUIRED = {
    "hidden_size": 16,
    "num_heads": 2,
    "ffn_dim": 32,
    "num_layers": 1,
    "learning_rate": 0.001976,
    "warmup_tokens": 2000 * 61440,
}


def test_schedule_is_linear_then_inverse_square_root():
    """A published v0.7 submission on four V100s: 61,440 tokens, peak 0.001976 after 2,000 updates."""
    workload = TransformerWorkload(TransformerWorkload.Settings(**REQUIRED), SimpleNamespace(global_batch_size=61440))
    assert workload.mlperf_params()["opt_learning_rate_warmup_steps"] == 2000
    assert workload.lr_factor(0) == pytest.approx(1 / 2000)
    assert workload.lr_factor(1999) == 1
    assert workload.lr_factor(7999) == pytest.approx(0.5)


def test_schedule_can_equal_the_reference():
    """The reference's schedule (docs/mlperf_rules.md, "Transformer") has 16,000 updates of warm-up."""
    peak = 2.0 * 1024**-0.5 * 16000**-0.5
    settings = TransformerWorkload.Settings(**REQUIRED | {"learning_rate": peak, "warmup_tokens": 16000 * 4096})
    workload = TransformerWorkload(settings, SimpleNamespace(global_batch_size=4096))
    for step in (1, 77, 16000, 64000):
        expected = 2.0 * 1024**-0.5 * min(1, step / 16000) * max(step, 16000) ** -0.5
        assert peak * workload.lr_factor(step - 1) == pytest.approx(expected)


def test_defaults_equal_the_reference_or_submissions():
    settings = TransformerWorkload.Settings(**REQUIRED)
    assert (settings.beta_1, settings.beta_2, settings.epsilon) == (
        0.9,
        0.98,
        1e-9,
    )  # submissions; the reference has 0.997
    assert (settings.dropout, settings.label_smoothing) == (0.1, 0.1)
    assert (settings.beam_size, settings.length_penalty, settings.extra_decode_length) == (4, 0.6, 50)


def test_lines_are_stripped():
    """The reference strips lines before it learns from, encodes or translates them."""
    line = SharedVocabulary.normalize(" \u00a0Ein  Haus. \u3000", "de")
    assert line == "Ein  Haus."
    assert SharedVocabulary.split_words(line) == ["Ein", "  ", "Haus", "."]


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": 10, "num_heads": 4},
        {"num_layers": 0},
        {"beta_2": 1.0},
        {"warmup_tokens": 0},
        {"extra_decode_length": -1},
    ],
)
def test_rejects_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        TransformerWorkload.Settings(**REQUIRED | wrong)
