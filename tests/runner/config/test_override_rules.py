"""Overrides: data that are named are used, one target holds in every round, and what has no effect is refused."""

import re

import pytest

from timetrial.runner.config import override_rules
from timetrial.runner.config.compose import compose
from timetrial.runner.config.composer import Composer
from timetrial.runner.config.key_help import list_keys
from timetrial.runner.config.validation import quality_target, validate
from timetrial.runner.core.errors import ConfigurationError

FILES = {
    "ncf": {"path": "mine/a"},
    "resnet50": {"folder": "mine/a"},
    "cifar10": {"folder": "mine/a"},
    "cnn": {"folder": "mine/a"},
    "gpt": {"train": "[mine/a]", "validation": "[mine/b]"},
    "gnmt": {"source": "[mine/a]", "target": "[mine/b]", "test_source": "mine/c", "test_target": "mine/d"},
    "transformer": {"source": "[mine/a]", "target": "[mine/b]", "test_source": "mine/c", "test_target": "mine/d"},
    "ssd": {f"{split}_{kind}": "mine/a" for split in ("train", "val") for kind in ("annotations", "images")},
    "maskrcnn": {f"{split}_{kind}": "mine/a" for split in ("train", "val") for kind in ("annotations", "images")},
}


def composed(*overrides):
    return compose(["accelerator=cpu", *overrides]).node


@pytest.mark.parametrize("workload", FILES)
def test_naming_data_switches_generation_off(workload):
    names = [f"recipe.data.{key}={value}" for key, value in FILES[workload].items()]
    assert composed(f"workload={workload}").recipe.data.generate is not None
    assert composed(f"workload={workload}", *names).recipe.data.generate is None
    assert composed(f"workload={workload}", *names, "++recipe.data.generate.seed=2").recipe.data.generate.seed == 2
    for left_out in FILES[workload] if len(names) > 1 else ():
        some = [name for name in names if not name.startswith(f"recipe.data.{left_out}=")]
        with pytest.raises(ConfigurationError, match=f"set recipe.data.{left_out} too"):
            composed(f"workload={workload}", *some)


@pytest.mark.parametrize("workload", FILES)
def test_target_holds_whatever_the_round(workload):
    recipe = composed(f"workload={workload}").recipe
    metric = next(iter(next(iter(recipe.target.values()))))
    for round_name in recipe.target:
        config = validate(composed(f"workload={workload}", f"round={round_name}", f"target.{metric}=0.123"))
        assert quality_target(config)[metric] == 0.123
        assert quality_target(config).keys() == recipe.target[round_name].keys()
    with pytest.raises(ConfigurationError, match=f"target.unknown is no metric of .*{metric}"):
        composed(f"workload={workload}", "target.unknown=0.1")
    with pytest.raises(ConfigurationError, match=f"^target.{metric} must be a"):
        validate(composed(f"workload={workload}", f"target.{metric}=-1"))


def test_misspelled_metric_is_guessed():
    with pytest.raises(ConfigurationError, match=r"did you mean target\.bleu\?"):
        composed("workload=gnmt", "target.blue=0.3")


def test_recipe_selects_its_workload():
    assert composed("recipe=gnmt/mini").workload.name == "gnmt"
    assert composed("recipe=ncf/mini_1m").workload.name == "ncf"
    with pytest.raises(
        ConfigurationError, match="recipe=gnmt/mini is not a recipe of workload=ncf: write workload=gnmt"
    ):
        composed("workload=ncf", "recipe=gnmt/mini")
    assert override_rules.complete(["recipe=gnmt/mini,gnmt/embedded"])[0] == "workload=gnmt"
    assert override_rules.complete(["recipe=gnmt/mini,ncf/mini"]) == ["recipe=gnmt/mini,ncf/mini"]


def test_composer_applies_the_same_rules():
    composer = Composer()
    node = composer.compose(["accelerator=cpu", "recipe=gnmt/mini", "target.bleu=0.3"]).node
    assert (node.workload.name, node.target.bleu) == ("gnmt", 0.3)
    assert composer.compose(["accelerator=cpu", "recipe.data.path=mine"]).node.recipe.data.generate is None
    with pytest.raises(ConfigurationError, match=r"launcher\.interface has no effect on one node"):
        composer.compose(["accelerator=cpu", "launcher.interface=ib0"])


# For each rule: choices under which its keys are masked, choices under which they are not, and the keys.
GNMT_ROUNDS = ["recipe.target.v05.bleu"]
MASKED = [
    (["workload=gnmt"], ["workload=gnmt", "round=v05"], GNMT_ROUNDS),
    (["workload=gnmt", "round=v05", "target.bleu=0.2"], ["workload=gnmt", "round=v05"], GNMT_ROUNDS),
    (["data=synthetic"], [], ["recipe.data.path"]),
    (["workload=ssd", "data=synthetic"], ["data=torch"], [f"recipe.data.{name}" for name in FILES["ssd"]]),
    (
        ["workload=resnet50", "engine=tensorflow"],
        ["workload=resnet50"],
        ["engine.capture", "engine.cudnn_benchmark", "engine.deterministic", "engine.kernels"],
    ),
    ([], ["launcher=slurm", "launcher.nodes=2"], ["launcher.interface"]),
    ([], ["scale=reference"], ["workload.compiled", "workload.max_micro_batch"]),
    ([], ["throughput.steps=1"], ["throughput.blocks"]),
    (["usd_per_gpu_hour=3"], [], ["accelerator.usd_per_gpu_hour"]),
]


@pytest.mark.parametrize(("masking", "others", "keys"), MASKED, ids=lambda value: " ".join(value) or "default")
def test_masked_override_is_refused_and_others_pass(masking, others, keys):
    for key in keys:
        with pytest.raises(ConfigurationError, match=f"^{re.escape(key)} has no effect .*: [a-z]+ "):
            composed(*masking, f"{key}=1")
    if "workload=ssd" not in masking:  # where all four keys are named together
        for key in keys:
            composed(*others, f"{key}=1")


def test_walk_over_the_schema_finds_no_other_masked_key():
    listed = {key for _, _, keys in MASKED for key in keys}
    for mask in override_rules.MASKS:
        assert any(re.fullmatch(mask.key, key) for key in listed), mask.key
    for masking, _, _ in MASKED:
        composition = compose(["accelerator=cpu", *masking])
        for key in {*list_keys(), *listed}:
            try:
                override_rules.apply(composition.node, [*masking, f"{key}=1"], composition.choices)
            except ConfigurationError as error:
                assert "generated data are not mixed" in str(error) or key in listed, (masking, key, error)  # noqa: PT017
