"""The closed division: what is refused with which sentence, and what the rules allow."""

import hashlib
import re
import shlex
from pathlib import Path

import pytest

from timetrial.datasets.download.manifest import Entry, Manifest
from timetrial.datasets.registry import catalog
from timetrial.runner.config.compose import compose as compose_config
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError, Exit
from timetrial.runner.mlperf import closed_division

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "mlperf_rules.md").read_text()
REFUSED = re.findall(r"^\| `(.+)` \| (.+\.) \|$", PAGE.split("## Closed runs")[1].split("These depend")[0], re.M)
RECIPES = [
    ["workload=resnet50", "scale=reference"],
    ["workload=resnet50", "scale=reference", "engine=tensorflow"],
    ["workload=resnet50", "recipe=resnet50/reference_256"],
    ["workload=resnet50", "recipe=resnet50/reference_3264"],
    ["workload=ssd", "scale=reference", "gpus=8"],
    ["workload=ssd", "scale=reference", "gpus=2", "tuning.micro_batch_size=128"],
    ["workload=maskrcnn", "scale=reference"],
    ["workload=gnmt", "scale=reference"],
    ["workload=gnmt", "recipe=gnmt/reference_1024"],
    ["workload=transformer", "scale=reference"],
    ["workload=transformer", "recipe=transformer/reference_81920"],
]
FREE = [
    [
        "workload=resnet50",
        "scale=reference",
        "recipe.training.learning_rate=7.4321",
        "recipe.training.weight_decay=2e-4",
    ],
    ["workload=resnet50", "scale=reference", "+recipe.training.label_smoothing=0", "recipe.first_eval_epoch=2"],
    ["workload=maskrcnn", "scale=reference", "recipe.training.lr_milestone_samples=[1152000,1536000]"],
    ["workload=transformer", "scale=reference", "+recipe.training.beta_2=0.99", "recipe.data.max_length=80"],
]


def config_of(options):
    accelerator = ["accelerator=cpu", "launcher=local"]
    return validate(compose_config([*accelerator, "division=closed", *options]).node)


def refuse(config):
    """Check what is checked before a run directory is opened."""
    closed_division.check_config(config)
    closed_division.check_datasets(config)


def test_every_rule_is_in_the_table():
    sentences = " ".join(sentence for _, sentence in REFUSED)
    rules = ["no rules", "reference scale", "rules of v07", "its seeds", "caches", "official rule file"]
    rules += ["loaders", "generated", "manifest", "hidden_size", "multiple", "power of 2", "1 + k/10", "span 128"]
    assert [words for words in rules if words not in sentences] == []


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_refuses_with_the_sentence_of_the_table(options, sentence):
    with pytest.raises(ConfigurationError) as caught:
        refuse(config_of(shlex.split(options)))
    assert str(caught.value) == sentence
    assert caught.value.exit_code == Exit.CONFIGURATION


@pytest.mark.parametrize("options", [*RECIPES, *FREE], ids=" ".join)
def test_allows_reference_recipes_and_free_hyperparameters(options):
    config = config_of(options)
    closed_division.check_config(config)
    assert (config.round.name, config.seed) == ("v07", None)
    assert config.clear_caches


def test_open_runs_are_the_default_and_keep_their_seed():
    config = validate(compose_config(["accelerator=cpu", "workload=gnmt", "scale=reference"]).node)
    assert (config.division, config.seed, config.round.name) == ("open", 1, "v07")
    assert not config.clear_caches


@pytest.mark.parametrize(
    ("constraint", "allowed", "refused"),
    [
        ("any", [0.1, 7], []),
        ({"choices": [1, 50]}, [1, 50], [2, 0]),
        ({"multiple_of": 0.02}, [0.02, 0.16, 0.3], [0.0, 0.03, -0.02]),
        ({"power_of_two_times": 1e-4}, [1e-4, 5e-5, 8e-4, 2.5e-5], [3e-5, 0.0, -1e-4]),
        ({"stretched": [40, 50]}, [[40, 50], [44, 55], [80, 100]], [[40, 55], [41, 51.25], [40], [50, 40]]),
    ],
)
def test_constraints(constraint, allowed, refused):
    assert all(closed_division.is_allowed(value, constraint) for value in allowed)
    assert not any(closed_division.is_allowed(value, constraint) for value in refused)


@pytest.mark.parametrize("benchmark", ["resnet", "ssd", "maskrcnn", "gnmt", "transformer"])
def test_rule_tables_name_datasets_and_keys_that_exist(benchmark):
    rules = closed_division.load_rules(benchmark)
    assert rules.datasets.keys() <= catalog.read().keys()
    table = PAGE.split("### Free hyperparameters")[1].split("Source:")[0]
    for key, constraint in rules.free.items():
        assert f"`{key}`" in table, key
        assert closed_division.describe(constraint) in table


def write_manifest(folder, name, *, change=None, files=None):
    """Write the manifest of a dataset as `timetrial data fetch` does, without its files."""
    source = catalog.read()[name]
    raw_files = {file.name: file.sha256 or hashlib.sha256(b"x").hexdigest() for file in source.files}
    raw_files.update(change or {})
    entries = [Entry("0" * 64, 1, f"{sub}/{index}") for sub, n in (files or {}).items() for index in range(n)]
    (folder / name).mkdir(parents=True)
    text = Manifest({"dataset": name, "raw_files": raw_files}, entries).to_text()
    (folder / name / ".manifest").write_text(text)


def test_manifest_of_published_raw_files_is_accepted(tmp_path):
    write_manifest(tmp_path, "wmt16")
    closed_division.check_datasets(config_of(["workload=gnmt", "scale=reference", f"data_dir={tmp_path}"]))


def test_other_raw_files_are_refused(tmp_path):
    write_manifest(tmp_path, "wmt16", change={"training-parallel-nc-v11.tgz": "0" * 64})
    with pytest.raises(ConfigurationError, match=r"wmt16 is not the reference's .*training-parallel-nc-v11.tgz"):
        closed_division.check_datasets(config_of(["workload=gnmt", "scale=reference", f"data_dir={tmp_path}"]))


def test_other_numbers_of_files_are_refused(tmp_path):
    write_manifest(tmp_path, "coco", files={"train2017": 3, "val2017": 5000})
    config = config_of(["workload=maskrcnn", "scale=reference", f"data_dir={tmp_path}"])
    with pytest.raises(ConfigurationError, match=r"train2017 has 3 files, not 118,287"):
        closed_division.check_datasets(config)


@pytest.mark.parametrize(
    ("workload", "train", "evaluation", "message"),
    [
        ("ssd", 117266, 4952, None),
        ("ssd", 117266, 5000, "5,000 evaluation samples and the reference's have 4,952"),
        ("maskrcnn", 117265, 5000, "117,265 training samples and the reference's have 117,266"),
        ("resnet50", 1281167, 50000, None),
        ("gnmt", 3_900_000, 3003, None),
        ("transformer", 4_500_000, 3000, "3,000 evaluation samples"),
    ],
)
def test_numbers_of_samples_are_the_reference_s(workload, train, evaluation, message):
    config = config_of([f"workload={workload}", "scale=reference"])
    if message is None:
        closed_division.check_sizes(config, train_size=train, eval_size=evaluation)
        return
    with pytest.raises(ConfigurationError, match=message):
        closed_division.check_sizes(config, train_size=train, eval_size=evaluation)
