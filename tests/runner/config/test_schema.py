"""Every legal combination composes; every illegal one says why in one sentence."""

import re

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from timetrial.runner.config.compose import load_config, to_yaml
from timetrial.runner.config.validation import gradient_accumulation_steps, validate
from timetrial.runner.core import error_messages
from timetrial.runner.core.errors import ConfigurationError, Exit


def recipes(root):
    return sorted(
        str(path.relative_to(root / "conf" / "recipe"))[:-5] for path in (root / "conf/recipe").rglob("*.yaml")
    )


def test_every_recipe_composes_with_every_precision_and_card(compose, root):
    cards = [path.stem for path in (root / "conf/accelerator").glob("*.yaml")]
    for recipe in recipes(root):
        chosen = [f"recipe={recipe}", f"workload={recipe.split('/')[0]}"]
        for precision in ("fp32", "tf32", "bf16", "fp16"):
            validate(compose(*chosen, f"precision={precision}"))
        for card in cards:
            validate(compose(*chosen, f"accelerator={card}"))


def test_every_loader_engine_and_model_composes(compose):
    for loader in ("torch", "dali", "tfdata", "synthetic"):
        assert validate(compose("workload=resnet50", f"data={loader}")).data.loader == loader
    tensorflow = validate(compose("workload=resnet50", "engine=tensorflow"))
    assert (tensorflow.engine.name, tensorflow.data.loader) == ("tensorflow", "tfdata")
    for network in ("cnn10", "wrn28_10", "resnet9"):
        node = compose("workload=cifar10", f"model={network}", "recipe=cifar10/reference")
        assert validate(node).recipe.training["network"] == network


def test_direct_links_are_what_the_environment_has_unless_the_run_says_otherwise(compose, monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    assert validate(compose()).peer_to_peer
    assert not validate(compose("peer_to_peer=false")).peer_to_peer
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert not validate(compose()).peer_to_peer
    assert validate(compose("peer_to_peer=true")).peer_to_peer


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["round=v07"], "NCF was not part of MLPerf round v07: use round=v05"),
        (["gpus=two"], "gpus"),
        (["recipe.training.learning_rate=fast"], "recipe.training: learning_rate.*'fast'"),
        (["+recipe.training.momentum=0.9"], "recipe.training.*momentum"),
        (["+recipe.data.colour=red"], "recipe.data.*colour"),
        (["nonsense=1"], "nonsense is not set here"),
        (["recipe.training.momentum=0.9"], r"write \+recipe.training.momentum=..."),
        (["workload=resnet"], "resnet"),
        (["recipe.max_epochs=0"], "recipe.max_epochs must be 1 or more, not 0"),
        (["tuning.micro_batch_size=0"], "tuning.micro_batch_size must be 1 or more"),
        (["gpus=0"], "gpus must be 1 or more"),
        (["launcher=inline", "gpus=2"], "use launcher=local"),
        (["resume=true"], "add run_dir=FOLDER"),
        (["epochs_past_target=-1"], "0 or more"),
        (["recipe.target.v05.hit_rate=1.5"], "fraction above 0"),
        (["recipe.target.v05=null"], "recipe.target"),
        (["precision.name=int8"], "precision must be one of fp32, tf32, bf16, fp16, not int8"),
        (["launcher.name=ssh"], "launcher must be one of"),
        (["engine.compile=fast"], "engine.compile must be one of"),
        (["recipe.max_grad_norm=0"], "recipe.max_grad_norm must be above 0"),
        (["time_limit_seconds=-1"], "time_limit_seconds must be above 0"),
        (["seed=-1"], "seed must be from 0"),
        (["seeds.data_order=-1"], "seed of data_order must be from 0"),
        (["recipe.training.mlp_layer_sizes=[63,32]"], "recipe.training: .*even"),
        (["recipe.training.learning_rate=0"], "recipe.training: learning_rate"),
        (["recipe.data.train_negatives=0"], "recipe.data: train_negatives"),
        (["recipe.data.generate={num_users: 0}"], "recipe.data.*users"),
        (["data.loader=dali"], "no loader data=dali: choose data=torch"),
        (["engine=tensorflow"], "NCF has no engine=tensorflow: use engine=torch"),
        (["workload=resnet50", "engine=tensorflow", "data=torch"], "engine=tensorflow reads with data=tfdata"),
        (["workload=resnet50", "engine=tensorflow", "recipe.max_grad_norm=1"], "engine=tensorflow does not clip"),
        (["workload=resnet50", "recipe.training.optimizer=adam"], "recipe.training: optimizer must be sgd or lars"),
        (["workload=resnet50", "recipe.data.image_size=31"], "recipe.data: image_size must be 32"),
        (["workload=resnet50", "+recipe.data.decoder=cpu"], "recipe.data: decoder must be gpu or workers, not cpu"),
        (["workload=cifar10", "+recipe.training.lr_milestones=[5]"], "recipe.training: set either lr_milestones"),
        (["workload=cifar10", "+recipe.data.cutout_size=40"], "recipe.data: cutout_size"),
        (["workload=ncff"], "^workload=ncff is not known: choose of cifar10, cnn, gnmt,"),
        (["recipe=ncf/none"], "^recipe=ncf/none is not known: timetrial list"),
        (["ncf"], "^ncf is no override: write KEY=VALUE"),
        (["throughput.steps=-1"], "throughput.steps must be 0 or more"),
        (["usd_per_gpu_hour=nan"], "usd_per_gpu_hour must be 0 or more"),
        (["telemetry.every_seconds=inf"], "must be 0 or more"),
        (["time_limit_seconds=nan"], "must be above 0"),
        (["throughput.blocks=0"], "throughput.blocks must be 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_with_one_sentence(compose, overrides, words):
    with pytest.raises((ConfigurationError, HydraException, OmegaConfBaseException)) as caught:
        validate(compose(*overrides))
    sentence = error_messages.format_error(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert re.search(words, sentence), sentence
    assert getattr(caught.value, "exit_code", Exit.CONFIGURATION) == Exit.CONFIGURATION


@pytest.mark.parametrize(
    ("batch", "gpus", "micro", "expected"), [(1024, 1, None, 1), (1024, 4, 64, 4), (1000, 3, 100, 4), (64, 1, 128, 1)]
)
def test_accumulation_follows_from_the_global_batch(compose, batch, gpus, micro, expected):
    node = compose(f"recipe.global_batch_size={batch}", f"gpus={gpus}", f"tuning.micro_batch_size={micro or 'null'}")
    assert gradient_accumulation_steps(validate(node)) == expected


def test_a_saved_configuration_loads_as_it_was(compose, tmp_path):
    node = compose("seed=5", "recipe.max_epochs=3")
    (tmp_path / "config.yaml").write_text(to_yaml(node))
    assert load_config(tmp_path / "config.yaml") == validate(node)
