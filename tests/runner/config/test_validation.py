"""Validation: each invalid configuration is rejected with one sentence that names the key."""

import copy
import re
from functools import cache

import pytest
from omegaconf import OmegaConf, open_dict

from timetrial.runner.config import error_messages
from timetrial.runner.config.compose import compose as compose_config
from timetrial.runner.config.validation import gradient_accumulation_steps, validate
from timetrial.runner.core.errors import ConfigurationError, Exit


@cache
def compose_choices(*choices):
    return compose_config(["accelerator=cpu", *choices]).node


def change_keys(overrides):
    """Return a configuration with keys set after composition: groups are composed once for all tests."""
    choices = tuple(word for word in overrides if re.match(r"(workload|engine|data|launcher|round)=", word))
    node = copy.deepcopy(compose_choices(*choices))
    with open_dict(node):
        node.merge_with_dotlist([word.lstrip("+") for word in overrides if word not in choices])
    return node


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["round=v07"], "NCF was not part of MLPerf round v07: use round=v05"),
        (["recipe.training.learning_rate=fast"], "recipe.training: learning_rate must be a number, not fast"),
        (["+recipe.training.momentum=0.9"], "recipe.training.*momentum"),
        (["data=dali"], r"NCF has no loader data=dali: choose data=torch\|synthetic"),
        (["+recipe.data.color=red"], "recipe.data.*color"),
        (["recipe.max_epochs=0"], "recipe.max_epochs must be 1 or more, not 0"),
        (["tuning.micro_batch_size=0"], "tuning.micro_batch_size must be 1 or more"),
        (["gpus=0"], "gpus must be 1 or more"),
        (["gpus=2000", "recipe.global_batch_size=1024"], "less than one sample per rank: use fewer gpus"),
        (["launcher=inline", "gpus=2"], "use launcher=local"),
        (["resume=true"], "add run_dir=FOLDER"),
        (["epochs_past_target=-1"], "0 or more"),
        (["recipe.target.v05.hit_rate=1.5"], "fraction above 0"),
        (["precision.name=int8"], "precision must be one of fp32, tf32, bf16, fp16, not int8"),
        (["launcher.name=ssh"], "launcher must be one of"),
        (["engine.compile=fast"], "engine.compile must be one of"),
        (["recipe.max_grad_norm=0"], "recipe.max_grad_norm must be above 0"),
        (["time_limit_seconds=-1"], "time_limit_seconds must be above 0"),
        (["seed=-1"], "seed must be from 0"),
        (["seeds.data_order=-1"], "^seeds.data_order must be from 0"),
        (["recipe.training.mlp_layer_sizes=[63,32]"], "recipe.training: .*even"),
        (["recipe.training.learning_rate=0"], "recipe.training: learning_rate"),
        (["recipe.data.train_negatives=0"], "recipe.data: train_negatives"),
        (["recipe.data.generate={num_users: 0}"], "recipe.data.*users"),
        (["data.loader=dali"], "no loader data=dali: choose data=torch"),
        (["engine=tensorflow"], "NCF has no engine=tensorflow: use engine=torch"),
        (["workload=resnet50", "engine=tensorflow", "data.loader=torch"], "engine=tensorflow reads with data=tfdata"),
        (["workload=resnet50", "engine=tensorflow", "recipe.max_grad_norm=1"], "engine=tensorflow does not clip"),
        (["workload=resnet50", "recipe.training.optimizer=adam"], "recipe.training: optimizer must be sgd or lars"),
        (["workload=resnet50", "recipe.data.image_size=31"], "recipe.data: image_size must be 32"),
        (["workload=resnet50", "+recipe.data.decoder=cpu"], "recipe.data: decoder must be gpu or workers, not cpu"),
        (["workload=cifar10", "+recipe.training.lr_milestones=[5]"], "recipe.training: set either lr_milestones"),
        (["workload=cifar10", "+recipe.data.cutout_size=40"], "recipe.data: cutout_size"),
        (["throughput.steps=-1"], "throughput.steps must be 0 or more"),
        (["usd_per_gpu_hour=.nan"], "usd_per_gpu_hour must be 0 or more"),
        (["telemetry.every_seconds=.inf"], "must be 0 or more"),
        (["time_limit_seconds=.nan"], "must be above 0"),
        (
            ["time_limit_seconds=.inf"],
            "time_limit_seconds must be a finite number, not inf: where it is a limit, null means none",
        ),
        (["recipe.training.learning_rate=.nan"], "recipe.training.learning_rate must be a finite number, not nan"),
        (["checkpoint.every_seconds=.inf"], "checkpoint.every_seconds must be a finite number"),
        (["throughput.blocks=0"], "throughput.blocks must be 1 or more"),
    ],
)
def test_rejects_invalid_configuration_with_one_sentence(overrides, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        validate(change_keys(overrides))
    sentence = error_messages.format_error(caught.value)
    assert "\n" not in sentence
    assert sentence[-1] in ".?"
    assert re.search(message, sentence), sentence
    assert caught.value.exit_code == Exit.CONFIGURATION


@pytest.mark.parametrize(
    ("global_batch_size", "gpus", "micro_batch_size", "steps"),
    [(1024, 1, "null", 1), (1024, 4, 64, 4), (1000, 3, 100, 4), (64, 1, 128, 1)],
)
def test_accumulation_steps_follow_from_the_global_batch(global_batch_size, gpus, micro_batch_size, steps):
    sizes = [f"recipe.global_batch_size={global_batch_size}", f"tuning.micro_batch_size={micro_batch_size}"]
    assert gradient_accumulation_steps(validate(change_keys([f"gpus={gpus}", *sizes]))) == steps


def test_validated_configuration_is_typed():
    config = validate(change_keys(["gpus=2", "seeds.sampling=7"]))
    assert (config.gpus, config.seeds.sampling) == (2, 7)
    assert OmegaConf.is_config(config.recipe) is False
