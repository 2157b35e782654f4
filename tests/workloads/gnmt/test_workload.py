"""GNMT's schedule against the logs of published submissions, and its score."""

import math
from types import SimpleNamespace

import pytest
import torch

from timetrial.runner.config.validation import build_settings, validate
from timetrial.workloads.gnmt.workload import GNMTWorkload

# Batch, learning rate, and updates up to the end of the warm-up, to the first halving and between halvings, as logged
# by published submissions: v0.7 (NVIDIA's DGX-1) and v0.5 (its DGX-1 and DGX-2).
PUBLISHED = [("reference", 2048, 0.002, 200, 6453, 809), ("reference_1024", 1024, 0.00125, 200, 6000, 500)]
EPOCH_PAIRS = 3_969_024
REQUIRED = {
    "hidden_size": 8,
    "learning_rate": 0.1,
    "warmup_samples": 1,
    "remain_samples": 1,
    "decay_interval_samples": 1,
}


def reference_workload(compose, recipe="reference"):
    config = validate(compose("workload=gnmt", "scale=reference", f"recipe=gnmt/{recipe}"))
    data = SimpleNamespace(global_batch_size=config.recipe.global_batch_size)
    return GNMTWorkload(build_settings(GNMTWorkload, config.recipe.training, ""), data), config.recipe


@pytest.mark.parametrize(("recipe", "batch", "base", "warmup", "remain", "interval"), PUBLISHED)
def test_learning_rate_of_every_update_is_the_published_one(compose, recipe, batch, base, warmup, remain, interval):
    """The reference computes it from the 1-based update."""
    workload, config = reference_workload(compose, recipe)
    params = workload.mlperf_params()
    assert config.global_batch_size == batch
    assert params["opt_base_learning_rate"] == base
    assert params["opt_learning_rate_warmup_steps"] == warmup
    assert params["opt_learning_rate_remain_steps"] == remain
    assert params["opt_learning_rate_decay_interval"] == interval
    assert params["opt_learning_rate_decay_steps"] == 4
    for update in range(1, config.max_epochs * EPOCH_PAIRS // batch + 1):
        if update <= warmup:
            expected = math.exp(math.log(0.01) * (warmup - update) / warmup)
        else:
            halvings = sum(update >= remain + number * interval for number in range(4))
            expected = 0.5**halvings
        assert workload.lr_factor(update - 1) == pytest.approx(expected, rel=1e-12), update


@pytest.mark.parametrize("recipe", ["reference", "reference_1024"])
def test_reference_evaluates_every_epoch(compose, recipe):
    _, config = reference_workload(compose, recipe)
    assert (config.first_eval_epoch, config.eval_every_epochs, config.max_epochs) == (1, 1, 8)


def test_warmup_ends_where_the_halvings_begin(compose):
    """As in the reference; otherwise several halvings would come at once."""
    workload, config = reference_workload(compose)
    workload.settings.remain_samples = 66 * config.global_batch_size
    params = workload.mlperf_params()
    assert params["opt_learning_rate_warmup_steps"] == params["opt_learning_rate_remain_steps"] == 66
    assert workload.lr_factor(32) == pytest.approx(0.1)
    assert workload.lr_factor(66) == 0.5


def test_hyperparameters_equal_the_reference(compose):
    workload, config = reference_workload(compose)
    settings = workload.settings
    assert (settings.num_halvings, settings.dropout, settings.label_smoothing) == (4, 0.2, 0.1)
    assert (settings.beam_size, settings.max_decode_length) == (5, 149)
    assert (settings.length_penalty, settings.coverage_penalty) == (0.6, 0.1)
    assert config.max_grad_norm == 5.0
    with torch.device("meta"):
        model = GNMTWorkload(settings, SimpleNamespace(padded_vocab_size=32320)).build_model()
    assert sum(weight.numel() for weight in model.parameters()) == 160_671_297


def test_bleu_ignores_case_and_is_a_fraction():
    bleu = GNMTWorkload.build_bleu(["Ein kleines Mädchen klettert in ein Spielhaus aus Holz."])
    assert bleu(["ein kleines mädchen klettert in ein spielhaus aus holz."]) == pytest.approx(1)
    assert bleu([""]) == 0
    assert bleu(["Ein kleines Mädchen klettert in ein Haus."]) == 0.5507  # two decimals of percent


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": 0},
        {"learning_rate": 0.0},
        {"dropout": 1.0},
        {"beam_size": 0},
        {"remain_samples": 0},
        {"decay_interval_samples": 0},
        {"num_halvings": -1},
    ],
)
def test_rejects_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        GNMTWorkload.Settings(**REQUIRED | wrong)
