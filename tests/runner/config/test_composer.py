"""Composing many runs: each configuration equals the one that a run composes."""

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from timetrial.runner.config.compose import compose
from timetrial.runner.config.composer import Composer
from timetrial.runner.core.errors import RunError

OVERRIDES = [
    ["seed=1"],
    ["seed=2", "workload=resnet50", "recipe.global_batch_size=16", "gpus=2"],
    ["seed=3", "workload=resnet50", "recipe.global_batch_size=32", "recipe.training.momentum=0.5"],
    ["seed=4", "workload=resnet50", "gpus=2", "accelerator=cpu"],
    ["recipe.data.generate={num_users: 200, num_items: 300}"],
    ["+recipe.data.generate={num_users: 200}", "precision=bf16"],
    ["precision=fp32", "precision=bf16", "seed=1", "seed=2"],
    ["workload={title: another}", "system=${oc.env:HOME}"],
    ["hydra.sweep.dir=elsewhere", "seed=5"],
    ["~recipe.max_grad_norm"],
    ["scale=mini", "recipe=ncf/reference"],
    ["workload=unknown"],
    ["seed=one"],
    ["seed=1,2"],
    ["nonsense=1"],
    ["workload@elsewhere=ncf"],
    ["nonsense@elsewhere=1"],
]


def outcome(compose_run, overrides):
    """Return the composition as text, or the error."""
    try:
        composition = compose_run(overrides)
    except (RunError, HydraException, OmegaConfBaseException) as error:
        return type(error), str(error)
    return OmegaConf.to_yaml(composition.node), composition.choices, composition.node._get_flag("struct")


@pytest.fixture(scope="module")
def composer():
    return Composer()


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_configuration_and_errors_are_those_of_a_single_run(composer, overrides):
    expected = outcome(compose, ["accelerator=h200", *overrides])
    for _ in range(2):  # the second time from the files that the first has merged
        assert outcome(composer.compose, ["accelerator=h200", *overrides]) == expected


def test_files_are_merged_once_per_combination_of_choices(composer, monkeypatch):
    from timetrial.runner.config import composer as module

    composed = []
    monkeypatch.setattr(module, "compose", lambda overrides: composed.append(overrides) or compose(overrides))
    fresh = Composer()
    for seed in range(20):
        for precision in ("fp32", "bf16"):
            fresh.compose(["accelerator=h200", f"precision={precision}", f"seed={seed}"])
    assert composed == [("accelerator=h200", f"precision={precision}") for precision in ("fp32", "bf16")]
