"""The Transformer's schedule and settings."""

from types import SimpleNamespace

import pytest

from timetrial.workloads.transformer.vocabulary import SharedVocabulary
from timetrial.workloads.transformer.workload import AttentionTranslation

SIZES = {"width": 16, "heads": 2, "filter": 32, "layers": 1, "learning_rate": 0.001976, "warmup_tokens": 2000 * 61440}


def test_the_rate_rises_and_falls_by_the_root():
    """A published v0.7 submission on four V100s: 61,440 tokens, peak 0.001976 after 2,000 updates."""
    task = AttentionTranslation(AttentionTranslation.Settings(**SIZES), SimpleNamespace(global_batch_size=61440))
    assert task.mlperf_params()["opt_learning_rate_warmup_steps"] == 2000
    assert task.factor(0) == pytest.approx(1 / 2000)
    assert task.factor(1999) == 1
    assert task.factor(7999) == pytest.approx(0.5)


def test_the_reference_schedule_is_one_of_these():
    """2.0 * 1024**-.5 * min(1, step / 16000) * max(step, 16000)**-.5 (mlperf.md 12.5): its peak, and 16,000 updates."""
    peak = 2.0 * 1024**-0.5 * 16000**-0.5
    settings = AttentionTranslation.Settings(**SIZES | {"learning_rate": peak, "warmup_tokens": 16000 * 4096})
    task = AttentionTranslation(settings, SimpleNamespace(global_batch_size=4096))
    for step in (1, 77, 16000, 64000):
        expected = 2.0 * 1024**-0.5 * min(1, step / 16000) * max(step, 16000) ** -0.5
        assert peak * task.factor(step - 1) == pytest.approx(expected)


def test_what_no_recipe_says_is_the_references_or_of_the_submissions():
    chosen = AttentionTranslation.Settings(**SIZES)
    assert (chosen.beta_1, chosen.beta_2, chosen.epsilon) == (0.9, 0.98, 1e-9)  # submissions; the reference's is 0.997
    assert (chosen.dropout, chosen.label_smoothing) == (0.1, 0.1)
    assert (chosen.beam, chosen.length_alpha, chosen.longer) == (4, 0.6, 50)


def test_blanks_around_a_line_are_no_pieces():
    """The reference strips lines before it learns from, encodes or translates them."""
    line = SharedVocabulary.normal(" \u00a0Ein  Haus. \u3000", "de")
    assert line == "Ein  Haus."
    assert SharedVocabulary.words(line) == ["Ein", "  ", "Haus", "."]


@pytest.mark.parametrize(
    "wrong", [{"width": 10, "heads": 4}, {"layers": 0}, {"beta_2": 1.0}, {"warmup_tokens": 0}, {"longer": -1}]
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        AttentionTranslation.Settings(**SIZES | wrong)
