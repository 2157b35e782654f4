"""SSD's learning rate schedule, MLPerf parameters, compliant logs and rejected settings."""

from types import SimpleNamespace

import pytest

from timetrial.workloads.ssd.model import SSD
from timetrial.workloads.ssd.workload import SingleShotDetection


def workload(batch_size=32, **changes):
    settings = SingleShotDetection.Settings(**{"learning_rate": 0.01, "warmup_samples": 300 * batch_size} | changes)
    data = SimpleNamespace(global_batch_size=batch_size, crop_attempts=1, images_per_statistic=batch_size)
    return SingleShotDetection(settings, data)


@pytest.mark.parametrize("factor", [0, 1, 3])
def test_warmup_equals_the_reference(factor):
    """lr = base - (warmup - i) * base / (warmup * 2**factor) (docs/mlperf_rules.md, "SSD")."""
    ssd = workload(warmup_factor=factor)
    for step in (0, 1, 150, 299):
        expected = 0.01 - (300 - step) * 0.01 / (300 * 2**factor)
        assert 0.01 * ssd.lr_factor(step, 1000) == pytest.approx(expected)
    assert ssd.lr_factor(300, 1000) == 1


def test_learning_rate_decays_at_each_milestone():
    ssd = workload(warmup_samples=0)
    assert [ssd.lr_factor(step, 10) for step in (0, 399, 400, 499, 500, 699)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_warmup_samples_do_not_depend_on_the_batch_size():
    for batch_size in (32, 128, 1024):
        ssd = workload(batch_size, warmup_samples=307_200)
        assert ssd.mlperf_params()["opt_learning_rate_warmup_steps"] == 307_200 // batch_size


def test_weight_decay_includes_biases_and_norms():
    net = SSD(3, 64, 8)
    optimizer, _ = workload().build_optimizer(net, 10)
    (group,) = optimizer.param_groups
    assert (len(group["params"]), group["weight_decay"], group["momentum"]) == (len(list(net.parameters())), 5e-4, 0.9)


def test_reference_recipe_has_mlperf_values(compose):
    """2.5e-3 per 32 images, 300 updates of warmup, decay at 40 and 50 (docs/mlperf_rules.md, "SSD")."""
    recipe = compose("workload=ssd", "scale=reference").recipe
    settings = SingleShotDetection.Settings(
        **{key: value for key, value in recipe.training.items() if key != "backbone"}
    )
    batch_size = recipe.global_batch_size
    assert settings.learning_rate == pytest.approx(2.5e-3 * batch_size / 32)
    assert (settings.warmup_samples / batch_size, list(settings.lr_milestones), settings.warmup_factor) == (
        300,
        [40, 50],
        0,
    )
    assert (recipe.data.image_size, recipe.data.crop_attempts, recipe.max_epochs) == (300, 50, 70)
    assert (recipe.target.v05.map, recipe.target.v07.map) == (0.212, 0.230)


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 0.0}, {"momentum": 1.0}, {"warmup_samples": -1}, {"lr_milestones": [50, 40]}, {"width": 7}],
)
def test_rejects_invalid_settings(changes):
    with pytest.raises(ValueError, match="must be"):
        workload(**changes)
