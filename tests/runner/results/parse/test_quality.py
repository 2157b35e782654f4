"""When a quality meets its target."""

import pytest

from timetrial.runner.results.parse.quality import meets_target


@pytest.mark.parametrize(
    ("value", "target", "options", "is_met"),
    [
        (0.6349924, 0.635, {}, False),
        (0.6349924, 0.635, {"dialect": "v0.5"}, False),
        (0.22976, 0.23, {}, False),
        (0.2299999952316284, 0.23, {}, False),
        (0.376996, 0.377, {}, False),
        (0.8027498722, 0.80275, {}, False),
        (0.23, 0.23, {}, True),
        (21.799999237060547, 0.218, {"scale": 100}, True),
        (21.799999, 0.218, {"scale": 100}, True),
        (21.7999, 0.218, {"scale": 100}, False),
        (24.99999, 0.25, {"scale": 100}, False),
        (0.2119979989850948, 0.212, {"dialect": "v0.5"}, True),
        (0.2119979989850948, 0.212, {}, False),
        (float("nan"), 0.2, {}, False),
    ],
)
def test_more_is_better(value, target, options, is_met):
    assert meets_target({"value": value}, {"mAP": target}, **options) is is_met


@pytest.mark.parametrize(("loss", "is_met"), [(0.925, True), (0.9, True), (0.9250058, False), (float("nan"), False)])
def test_less_loss_is_better(loss, is_met):
    assert meets_target({"value": loss}, {"loss": 0.925}) is is_met


@pytest.mark.parametrize(
    ("quality", "is_met"),
    [
        ({"FID": 90.0, "CLIP": 0.15}, True),
        ({"FID": 90.1, "CLIP": 0.2}, False),
        ({"FID": 50.0, "CLIP": 0.149}, False),
        ({"CLIP": 0.2}, False),
        ({"FID": 50.0}, False),
        ({}, False),
    ],
)
def test_every_metric_must_reach_its_target(quality, is_met):
    assert meets_target(quality, {"FID": 90.0, "CLIP": 0.15}) is is_met


def test_nothing_meets_an_unknown_target():
    assert not meets_target({"value": 1.0}, {})
