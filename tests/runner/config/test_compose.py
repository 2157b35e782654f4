"""Composition: every choice of the groups composes, and errors of overrides are one sentence."""

import re
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from timetrial.runner.config import error_messages
from timetrial.runner.config.compose import as_sweep, compose_recipes, expand_sweep, load_config, to_yaml
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError

CONF = Path(__file__).resolve().parents[3] / "conf"
RECIPES = sorted(str(path.relative_to(CONF / "recipe"))[:-5] for path in (CONF / "recipe").rglob("*.yaml"))
ACCELERATORS = sorted(path.stem for path in (CONF / "accelerator").glob("*.yaml"))
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@pytest.fixture(scope="module")
def groups():
    """Return the nodes of all accelerators and precisions, each composed once."""
    from timetrial.runner.config.compose import compose

    accelerators = {name: compose([f"accelerator={name}"]).node.accelerator for name in ACCELERATORS}
    return accelerators, {name: compose([f"precision={name}"]).node.precision for name in PRECISIONS}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_is_valid_with_every_precision_and_accelerator(compose, groups, recipe):
    """Each accelerator with a precision that it has: fp16 where its data sheet has no other of 16 bits."""
    accelerators, precisions = groups
    choices = [f"recipe={recipe}", f"workload={recipe.split('/')[0]}"]
    base = compose(*choices)
    for index, name in enumerate(ACCELERATORS):
        node, precision = base, PRECISIONS[index % len(PRECISIONS)]
        precision = "fp16" if accelerators[name].tflops.get(precision, 0) is None else precision
        node.accelerator, node.precision = accelerators[name], precisions[precision]
        config = validate(node)
        assert (config.accelerator.name, config.precision.name) == (name, precision)


def test_every_precision_is_among_as_many_accelerators(compose, groups):
    assert len(ACCELERATORS) >= len(PRECISIONS)
    accelerators, precisions = groups
    for accelerator, precision in (("a100", "bf16"), ("auto", "tf32")):
        replaced = compose()
        replaced.accelerator, replaced.precision = accelerators[accelerator], precisions[precision]
        assert replaced == compose(f"accelerator={accelerator}", f"precision={precision}")


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        ("accelerator=h100 workload=ssd recipe=ssd/reference", "default"),
        ("accelerator=a100 workload=ssd recipe=ssd/mini", None),
        ("accelerator=h200 workload=transformer recipe=transformer/reference", "default"),
        ("accelerator=h200 workload=transformer recipe=transformer/mini", None),  # its steps are captured
        ("accelerator=h100 workload=ncf recipe=ncf/reference", None),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/reference", None),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/reference gpus=2", None),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/reference precision=fp16", None),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/mini precision=fp16", None),
        ("accelerator=v100 workload=ssd recipe=ssd/reference", None),
        ("accelerator=cpu workload=ssd recipe=ssd/reference", None),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/reference engine=tensorflow", None),
        ("accelerator=h100 workload=ssd recipe=ssd/reference engine.compile=null", None),
        ("accelerator=t4 workload=ncf engine.compile=tuned", "tuned"),
    ],
)
def test_models_are_compiled_by_default_where_it_pays(compose, overrides, mode):
    assert validate(compose(*overrides.split())).engine.compile == mode


@pytest.mark.parametrize(
    ("overrides", "is_captured"),
    [
        ("accelerator=h100 workload=ssd recipe=ssd/reference", False),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/reference engine.capture=true", True),
        ("accelerator=h100 workload=ssd recipe=ssd/reference engine.compile=null", True),
        ("accelerator=h100 workload=resnet50 recipe=resnet50/reference", True),
        ("accelerator=h100 workload=transformer recipe=transformer/mini engine.compile=default", True),
        ("accelerator=h100 workload=ncf recipe=ncf/reference", True),
        ("accelerator=h100 workload=gnmt recipe=gnmt/mini engine.capture=false", False),
    ],
)
def test_steps_are_captured_by_default_unless_they_are_compiled_and_large(compose, overrides, is_captured):
    assert validate(compose(*overrides.split())).engine.capture is is_captured


def test_every_loader_engine_and_model_composes(compose):
    for loader in ("torch", "dali", "tfdata", "synthetic"):
        assert validate(compose("workload=resnet50", f"data={loader}")).data.loader == loader
    tensorflow = validate(compose("workload=resnet50", "engine=tensorflow"))
    assert (tensorflow.engine.name, tensorflow.data.loader) == ("tensorflow", "tfdata")
    for network in ("cnn10", "wrn28_10", "resnet9"):
        node = compose("workload=cifar10", f"model={network}", "recipe=cifar10/reference")
        assert validate(node).recipe.training["network"] == network


def test_peer_to_peer_follows_the_environment_unless_overridden(compose, monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    assert validate(compose()).peer_to_peer
    assert not validate(compose("peer_to_peer=false")).peer_to_peer
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert not validate(compose()).peer_to_peer
    assert validate(compose("peer_to_peer=true")).peer_to_peer


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["gpus=two"], "gpus"),
        (["nonsense=1"], "^There is no key nonsense: timetrial run --help"),
        (["recipe.training.momentum=0.9"], "^There is no key recipe.training.momentum: timetrial run --help"),
        (["workload=cifar10", "recipe.training.label_smoothing=0.1"], r"write \+recipe.training.label_smoothing=0.1 "),
        (["recipe.target.v05=null"], "recipe.target"),
        (["workload=resnet"], "resnet"),
        (["workload=ncff"], "^workload=ncff is not known: did you mean workload=ncf. Choose one of cifar10, cnn,"),
        (["recipe=ncf/none"], "^recipe=ncf/none is not known: choose one of ncf/embedded, "),
        (["ncf"], "^ncf is not an override: write workload=ncf"),
        (["usd_per_gpu_hour=nan"], "usd_per_gpu_hour must be 0 or more"),
        (["telemetry.every_seconds=inf"], "must be 0 or more"),
        (
            ["scale=reference", "recipe=ncf/mini"],
            "recipe=ncf/mini has the scale mini, .* scale=reference",
        ),
        (["recipe=ncf/mini", "scale=embedded"], "contradicts scale=embedded: leave one of the two out"),
        (["recipe.scale=tiny"], "recipe.scale must be one of embedded, mini, reference, not tiny"),
        (["workload=resnet50", "engine=tensorflow", "data=torch"], "engine=tensorflow reads with data=tfdata"),
    ],
)
def test_rejects_wrong_override_with_one_sentence(compose, overrides, message):
    with pytest.raises((ConfigurationError, HydraException, OmegaConfBaseException)) as caught:
        validate(compose(*overrides))
    sentence = error_messages.format_error(caught.value)
    assert "\n" not in sentence
    assert sentence[-1] in ".?"
    assert re.search(message, sentence), sentence


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_has_the_scale_that_its_name_starts_with(recipe):
    assert compose_recipes([recipe])[recipe]["scale"] == recipe.split("/")[1].split("_")[0]


@pytest.mark.parametrize(
    ("overrides", "recipe", "scale"),
    [
        ([], "ncf/embedded", "embedded"),
        (["scale=mini"], "ncf/mini", "mini"),
        (["recipe=ncf/mini_1m"], "ncf/mini_1m", "mini"),
        (["recipe=ncf/reference_2048"], "ncf/reference_2048", "reference"),
        (["scale=mini", "recipe=ncf/mini_1m"], "ncf/mini_1m", "mini"),
    ],
)
def test_scale_chooses_the_recipe_and_the_recipe_has_a_scale(overrides, recipe, scale):
    from timetrial.runner.config.compose import compose

    composition = compose(["accelerator=cpu", *overrides])
    assert (composition.choices["recipe"], validate(composition.node).recipe.scale) == (recipe, scale)


def test_saved_configuration_loads_unchanged(compose, tmp_path):
    node = compose("seed=5", "recipe.max_epochs=3")
    config = validate(node)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert (tmp_path / "config.yaml").read_text() == OmegaConf.to_yaml(node, resolve=True)
    assert load_config(tmp_path / "config.yaml") == config


def test_the_configuration_of_an_older_run_loads(compose, tmp_path):
    node = compose("seed=5")
    values = OmegaConf.to_container(node, resolve=True)
    values["workload"]["faster_captured"] = values["engine"]["full_search"] = True
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(values))
    assert load_config(tmp_path / "config.yaml") == validate(node)


def test_the_default_recipe_is_the_same_choice_in_hydra_1_3_and_1_4():
    from timetrial.runner.config.compose import Composition, compose

    composed = compose(["accelerator=cpu", "scale=mini"])
    others = {group: choice for group, choice in composed.choices.items() if group != "recipe"}
    for recipe in ({"recipe": "ncf/mini"}, {"recipe/ncf": "mini"}):
        hydra_node = OmegaConf.create({"runtime": {"choices": others | recipe}, "overrides": {"task": []}})
        assert Composition.of_hydra(composed.node, hydra_node).choices == composed.choices


def test_choices_of_the_groups_are_returned():
    from timetrial.runner.config.compose import compose

    choices = compose(["accelerator=cpu", "workload=ssd", "scale=reference"]).choices
    assert (choices["workload"], choices["recipe"], choices["accelerator"]) == ("ssd", "ssd/reference", "cpu")


def test_recipes_compose_by_themselves():
    recipes = compose_recipes(["ncf/embedded", "ncf/reference_2048"])
    assert list(recipes) == ["ncf/embedded", "ncf/reference_2048"]
    assert recipes["ncf/reference_2048"]["global_batch_size"] == 2048
    assert recipes["ncf/reference_2048"]["target"] == compose_recipes(["ncf/reference"])["ncf/reference"]["target"]
    assert "${data_dir}" in recipes["ncf/reference_2048"]["data"]["path"]


def test_sweep_expands_to_the_product_with_the_seed_slowest():
    """The settings of each seed run in turn, so that a drift of the machine favors none."""
    expected = [
        ["accelerator=cpu", f"seed={seed}", f"precision={precision}"]
        for seed in (1, 2)
        for precision in ("fp32", "bf16")
    ]
    assert expand_sweep(["accelerator=cpu", "precision=fp32,bf16", "seed=range(1,3)"]) == expected
    assert expand_sweep(["accelerator=cpu", "seed=1,2", "precision=fp32,bf16"]) == expected
    assert as_sweep(["accelerator=cpu", "seed=3", "precision=fp32,bf16"]) == [
        *("accelerator=cpu", "seed=3", "precision=fp32,bf16")
    ]
    assert expand_sweep(["seed=3"]) == [["seed=3"]]


def test_sweep_takes_several_ranges():
    words = ["seed=range(1,3),7,range(10,15,2)", "recipe.training.learning_rate=range(0.5,1.1,0.25)"]
    runs = expand_sweep(words)
    assert [run[0] for run in runs[::3]] == ["seed=1", "seed=2", "seed=7", "seed=10", "seed=12", "seed=14"]
    assert [run[1].split("=")[1] for run in runs[:3]] == ["0.5", "0.75", "1.0"]
    assert as_sweep(["run_dir='range(1,2)',range(1,3)"]) == ["run_dir='range(1,2)',range(1,3)"]  # cannot be told apart


@pytest.mark.parametrize(
    "word", ["seed=range(3,1)", "seed=1,range(2,2)", "recipe.training.learning_rate=range(0.5,0.1)"]
)
def test_sweep_over_nothing_is_refused(word):
    with pytest.raises(ConfigurationError, match="has no values: the second number of a range is left out") as caught:
        expand_sweep([word])
    assert str(caught.value).startswith(word)


def test_sweep_expands_globs_over_a_group():
    runs = expand_sweep(["precision=glob(*16)"])
    assert sorted(run[0] for run in runs) == ["precision=bf16", "precision=fp16"]
