"""GNMT's schedule against the published submissions' logs, and its score."""

import math
from types import SimpleNamespace

import pytest

from timetrial.workloads.gnmt.workload import RecurrentTranslation

# What published v0.7 submissions logged: batch, rate, pairs an epoch, epochs planned -> remain, interval.
PUBLISHED = [(2048, 0.002, 3969024, 5, 6453, 809), (3072, 0.002875, 3965952, 4.716, 4054, 506)]


def workload(batch, rate, pairs, epochs):
    settings = RecurrentTranslation.Settings(
        width=8, learning_rate=rate, warmup_samples=200 * batch, schedule_epochs=epochs
    )
    return RecurrentTranslation(settings, SimpleNamespace(global_batch_size=batch, steps_per_epoch=pairs // batch))


@pytest.mark.parametrize(("batch", "rate", "pairs", "epochs", "remain", "interval"), PUBLISHED)
def test_the_schedule_is_the_published_one(batch, rate, pairs, epochs, remain, interval):
    facts = workload(batch, rate, pairs, epochs).mlperf_params()
    assert facts["opt_learning_rate_remain_steps"] == pytest.approx(remain, abs=3)
    assert facts["opt_learning_rate_decay_interval"] == pytest.approx(interval, abs=2)
    assert facts["opt_learning_rate_warmup_steps"] == 200
    assert facts["opt_learning_rate_decay_steps"] == 4


def test_the_rate_warms_up_stays_and_is_halved():
    task = workload(2048, 0.002, 3969024, 5)
    remain, interval = (
        task.mlperf_params()[f"opt_learning_rate_{name}"] for name in ("remain_steps", "decay_interval")
    )
    assert task.factor(0) == pytest.approx(0.01)
    assert task.factor(100) == pytest.approx(math.exp(math.log(0.01) / 200) ** 100)
    assert task.factor(200) == task.factor(remain - 1) == 1
    assert [task.factor(remain + place * interval) for place in range(6)] == [0.5, 0.25, 0.125, 0.0625, 0.0625, 0.0625]


def test_a_warm_up_ends_where_the_halvings_begin():
    """As in the reference: else the rate would fall by several halvings at once."""
    task = workload(2048, 0.002, 2048 * 100, 1)  # 200 updates of warm-up, 100 in all
    assert (
        task.mlperf_params()["opt_learning_rate_warmup_steps"]
        == task.mlperf_params()["opt_learning_rate_remain_steps"]
        == 66
    )
    assert task.factor(33) == pytest.approx(0.1)
    assert task.factor(66) == 0.5


def test_what_no_recipe_says_is_the_references():
    chosen = workload(2048, 0.002, 3969024, 5).settings
    assert (chosen.remain, chosen.halvings, chosen.dropout, chosen.label_smoothing) == (0.666, 4, 0.2, 0.1)
    assert (chosen.beam, chosen.longest, chosen.length_alpha, chosen.coverage_beta) == (5, 150, 0.6, 0.1)


def test_the_score_ignores_case_and_is_a_fraction():
    task = workload(2048, 0.002, 3969024, 5)
    references = ["Ein kleines Mädchen klettert in ein Spielhaus aus Holz."]
    assert task.bleu(references, ["ein kleines mädchen klettert in ein spielhaus aus holz."]) == pytest.approx(1)
    assert task.bleu(references, [""]) == 0


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"learning_rate": 0.0}, {"dropout": 1.0}, {"beam": 0}, {"remain": 1.5}, {"halvings": -1}]
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        RecurrentTranslation.Settings(
            **{"width": 8, "learning_rate": 0.1, "warmup_samples": 1, "schedule_epochs": 1} | wrong
        )
