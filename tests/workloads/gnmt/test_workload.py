"""GNMT's schedule against the logs of published submissions, and its score."""

import math
from types import SimpleNamespace

import pytest

from timetrial.workloads.gnmt.workload import GNMTWorkload

# Logged by published v0.7 submissions: batch, learning rate, pairs per epoch, planned epochs; remain steps, interval.
PUBLISHED = [(2048, 0.002, 3969024, 5, 6453, 809), (3072, 0.002875, 3965952, 4.716, 4054, 506)]


def make_workload(batch, learning_rate, pairs, epochs):
    settings = GNMTWorkload.Settings(
        hidden_size=8, learning_rate=learning_rate, warmup_samples=200 * batch, schedule_epochs=epochs
    )
    return GNMTWorkload(settings, SimpleNamespace(global_batch_size=batch, steps_per_epoch=pairs // batch))


@pytest.mark.parametrize(("batch", "learning_rate", "pairs", "epochs", "remain", "interval"), PUBLISHED)
def test_schedule_equals_the_published_one(batch, learning_rate, pairs, epochs, remain, interval):
    params = make_workload(batch, learning_rate, pairs, epochs).mlperf_params()
    assert params["opt_learning_rate_remain_steps"] == pytest.approx(remain, abs=3)
    assert params["opt_learning_rate_decay_interval"] == pytest.approx(interval, abs=2)
    assert params["opt_learning_rate_warmup_steps"] == 200
    assert params["opt_learning_rate_decay_steps"] == 4


def test_schedule_warms_up_stays_constant_and_halves():
    workload = make_workload(2048, 0.002, 3969024, 5)
    remain, interval = (
        workload.mlperf_params()[f"opt_learning_rate_{name}"] for name in ("remain_steps", "decay_interval")
    )
    assert workload.lr_factor(0) == pytest.approx(0.01)
    assert workload.lr_factor(100) == pytest.approx(math.exp(math.log(0.01) / 200) ** 100)
    assert workload.lr_factor(200) == workload.lr_factor(remain - 1) == 1
    assert [workload.lr_factor(remain + number * interval) for number in range(6)] == [
        0.5,
        0.25,
        0.125,
        0.0625,
        0.0625,
        0.0625,
    ]


def test_warmup_ends_where_the_halvings_begin():
    """As in the reference; otherwise several halvings would come at once."""
    workload = make_workload(2048, 0.002, 2048 * 100, 1)  # 200 updates of warm-up, but 100 in total
    assert (
        workload.mlperf_params()["opt_learning_rate_warmup_steps"]
        == workload.mlperf_params()["opt_learning_rate_remain_steps"]
        == 66
    )
    assert workload.lr_factor(33) == pytest.approx(0.1)
    assert workload.lr_factor(66) == 0.5


def test_defaults_equal_the_reference():
    settings = make_workload(2048, 0.002, 3969024, 5).settings
    assert (settings.decay_start, settings.num_halvings, settings.dropout, settings.label_smoothing) == (
        0.666,
        4,
        0.2,
        0.1,
    )
    assert (settings.beam_size, settings.max_decode_length) == (5, 150)
    assert (settings.length_penalty, settings.coverage_penalty) == (0.6, 0.1)


def test_bleu_ignores_case_and_is_a_fraction():
    workload = make_workload(2048, 0.002, 3969024, 5)
    references = ["Ein kleines Mädchen klettert in ein Spielhaus aus Holz."]
    assert workload.bleu(references, ["ein kleines mädchen klettert in ein spielhaus aus holz."]) == pytest.approx(1)
    assert workload.bleu(references, [""]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": 0},
        {"learning_rate": 0.0},
        {"dropout": 1.0},
        {"beam_size": 0},
        {"decay_start": 1.5},
        {"num_halvings": -1},
    ],
)
def test_rejects_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        GNMTWorkload.Settings(
            **{"hidden_size": 8, "learning_rate": 0.1, "warmup_samples": 1, "schedule_epochs": 1} | wrong
        )
