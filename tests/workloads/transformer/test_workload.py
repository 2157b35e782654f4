"""The Transformer's learning rate schedule, settings and vocabulary."""

from types import SimpleNamespace

import pytest
import torch

from timetrial.runner.config.validation import build_settings, validate
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


# Batch and its multiple of 56,064 / 61,440, the published tokens without and with padding; peak rate, warm-up updates.
PUBLISHED = [("reference", 56064, 0.001976, 2000), ("reference_81920", 74752, 0.0019, 750)]
EPOCH_TARGET_TOKENS = 2184 * 56067  # of the published epoch


def reference_workload(compose, recipe):
    config = validate(compose("workload=transformer", "scale=reference", f"recipe=transformer/{recipe}"))
    data = SimpleNamespace(global_batch_size=config.recipe.global_batch_size)
    return TransformerWorkload(build_settings(TransformerWorkload, config.recipe.training, ""), data), config.recipe


@pytest.mark.parametrize(("recipe", "batch", "peak", "warmup"), PUBLISHED)
def test_learning_rate_of_every_update_is_the_published_one(compose, recipe, batch, peak, warmup):
    """The reference's formula, with the constant that gives the published peak."""
    workload, config = reference_workload(compose, recipe)
    assert config.global_batch_size == batch
    assert workload.mlperf_params()["opt_learning_rate_warmup_steps"] == warmup
    assert workload.mlperf_params()["opt_base_learning_rate"] == peak
    constant = peak / (1024**-0.5 * warmup**-0.5)
    for update in range(1, config.max_epochs * EPOCH_TARGET_TOKENS // batch + 1):
        expected = constant * 1024**-0.5 * min(1, update / warmup) * max(update, warmup) ** -0.5
        assert peak * workload.lr_factor(update - 1) == pytest.approx(expected, rel=1e-12), update


def test_updates_of_an_epoch_are_the_published_ones(compose):
    """As many as 56,067 tokens of the target on average; an epoch may end with a partial batch."""
    updates = EPOCH_TARGET_TOKENS / reference_workload(compose, "reference")[1].global_batch_size
    assert 2184 <= updates < 2185
    in_proportion = reference_workload(compose, "reference_81920")[1].global_batch_size / 81920
    assert in_proportion == pytest.approx(56067 / 61440, rel=1e-4)


@pytest.mark.parametrize("recipe", ["reference", "reference_81920"])
def test_reference_evaluates_every_epoch(compose, recipe):
    config = reference_workload(compose, recipe)[1]
    assert (config.first_eval_epoch, config.eval_every_epochs, config.max_epochs) == (1, 1, 8)


def test_hyperparameters_equal_the_reference_or_submissions(compose):
    workload, config = reference_workload(compose, "reference")
    settings = workload.settings
    # beta_2 is that of submissions; the reference has 0.997.
    assert (settings.beta_1, settings.beta_2, settings.epsilon) == (0.9, 0.98, 1e-9)
    assert (settings.dropout, settings.label_smoothing) == (0.1, 0.1)
    assert (settings.beam_size, settings.length_penalty, settings.extra_decode_length) == (4, 0.6, 50)
    assert config.max_grad_norm is None
    with torch.device("meta"):
        model = TransformerWorkload(settings, SimpleNamespace(padded_vocab_size=33708)).build_model()
    assert sum(weight.numel() for weight in model.parameters()) == 210_804_736


def test_schedule_can_equal_the_reference():
    """The reference's schedule (docs/mlperf_rules.md, "Transformer") has 16,000 updates of warm-up."""
    peak = 2.0 * 1024**-0.5 * 16000**-0.5
    settings = TransformerWorkload.Settings(**REQUIRED | {"learning_rate": peak, "warmup_tokens": 16000 * 4096})
    workload = TransformerWorkload(settings, SimpleNamespace(global_batch_size=4096))
    for step in (1, 77, 16000, 64000):
        expected = 2.0 * 1024**-0.5 * min(1, step / 16000) * max(step, 16000) ** -0.5
        assert peak * workload.lr_factor(step - 1) == pytest.approx(expected)


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
