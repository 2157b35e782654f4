"""Open runs of the reference recipes on generated data hold what the closed division wants in a log.

A closed run refuses generated data. Therefore a small open run with a target of its own is made, the four lines of its
log that an open run writes otherwise are rewritten, and the official checker judges it. Only the quality is mocked.
"""

import json

import pytest
from hydra.utils import get_class
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.run import launch
from timetrial.runner.mlperf import closed_division, compliance, official_checker
from timetrial.runner.record.run_record import ComplianceVerdict

IMAGES = [
    "training.stages=[1,1,1,1]",
    "max_epochs=3",
    "first_eval_epoch=3",
    "data.image_size=32",
    "data.generate={num_classes: 3, train_per_class: 20, val_per_class: 4, width: 40}",
    "data.workers=0",
]
SCENES = [
    "data.generate={num_train: 8, num_val: 4, num_classes: 2, max_objects: 2, high_contrast: true}",
    "training.backbone=null",
    "data.workers=0",
    "max_epochs=1",
]
TEXT = [
    "data.generate={num_train: 200, num_test: 6, num_nouns: 20, num_verbs: 10, num_adjectives: 10, num_adverbs: 10,"
    " seed: 1}",
    "data.source=['${data_dir}/train.source']",
    "data.target=['${data_dir}/train.target']",
    "data.test_source='${data_dir}/test.source'",
    "data.test_target='${data_dir}/test.target'",
    "data.vocabulary=null",
    "data.vocabulary_size=80",
    "data.workers=1",
    "training.beam_size=1",
    "training.hidden_size=16",
    "max_epochs=1",
]
SSD = [*SCENES, "global_batch_size=8", "first_eval_epoch=1", "data.image_size=48", "training.width=8"]
MASKRCNN = [
    *SCENES,
    "global_batch_size=4",
    "data.short_edge=48",
    "data.long_edge=64",
    "training.width=8",
    "training.fpn_channels=8",
    "training.representation_size=16",
]
TRANSFORMER = [*TEXT, "global_batch_size=400", "training.ffn_dim=16", "training.num_layers=1", "training.num_heads=2"]
# Reference recipe -> changes for generated data, a quality that meets the official target and one that just does not.
RECIPES = {
    "resnet50/reference": (IMAGES, {"accuracy": 0.759}, {"accuracy": 0.7589}),
    "resnet50/reference_256": (IMAGES, {"accuracy": 0.759}, {"accuracy": 0.7589}),
    "ssd/reference": (SSD, {"map": 0.23}, {"map": 0.2299}),
    "maskrcnn/reference": (MASKRCNN, {"BBOX": 0.377, "SEGM": 0.339}, {"BBOX": 0.377, "SEGM": 0.3389}),
    "gnmt/reference": (
        [*TEXT, "global_batch_size=16", "training.max_decode_length=4"],
        {"bleu": 0.24},
        {"bleu": 0.2399},
    ),
    "transformer/reference": ([*TRANSFORMER, "training.extra_decode_length=0"], {"bleu": 0.25}, {"bleu": 0.2499}),
}


def rewrite(log, values):
    """Replace the values of these keys of a log."""
    lines = []
    for line in log.read_text().splitlines():
        entry = json.loads(line.removeprefix(":::MLLOG "))
        entry["value"] = values.get(entry["key"], entry["value"])
        lines.append(f":::MLLOG {json.dumps(entry)}\n")
    log.write_text("".join(lines))


def is_success(log):
    """Return whether the official checker passes the log under its own rule files."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", "0.7.0", True, False)
    return mlp_compliance.main(str(log), "training_0.7.0/common.yaml", checker)[0]


def lowered(quality):
    return {metric: value / 2 for metric, value in quality.items()}


@pytest.mark.integration
@pytest.mark.parametrize("met", [True, False], ids=["met", "missed"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_log_of_an_open_run_meets_the_official_rules_once_it_says_closed(compose, tmp_path, monkeypatch, recipe, met):
    changes, target, missed = RECIPES[recipe]
    workload = recipe.split("/")[0]
    changes = [f"++recipe.{change}" for change in changes]
    changes += [f"recipe.target.v07.{metric}={value}" for metric, value in lowered(target).items()]
    folders = ["launcher=inline", f"data_dir={tmp_path}", f"runs_dir={tmp_path}"]
    node = compose(f"workload={workload}", f"recipe={recipe}", *folders, *changes)
    config = validate(node)
    monkeypatch.setattr(get_class(config.workload.workload), "score", lambda self, parts: target if met else missed)
    result = launch(node, Console(quiet=True))
    assert result.exit_code == Exit.TARGET_REACHED
    log = result.run_dir.log
    assert compliance.check(log) == ComplianceVerdict(True, "0.7.0 keys, own target", (), converged=True)
    quality = target if len(target) > 1 else next(iter(target.values()))
    rewrite(log, {"submission_division": "closed", "quality_target": quality, "cache_clear": True, "seed": 4075329817})
    assert is_success(log) == met
    verdict = compliance.check(log)
    assert (verdict.rules, verdict.compliant, verdict.converged) == ("closed, 0.7.0", met, met)
    if not met:
        assert all("No eval_accuracy line reaches the target" in problem for problem in verdict.problems)


@pytest.mark.parametrize("recipe", RECIPES)
def test_targets_are_those_of_the_official_rule_files(compose, recipe):
    node = compose(f"workload={recipe.split('/')[0]}", f"recipe={recipe}")
    assert RECIPES[recipe][1] == dict(node.recipe.target.v07)
    benchmark = node.workload.benchmark
    assert sorted(node.recipe.target.v07.values()) == official_checker.official_target(benchmark, "closed")
    assert closed_division.load_rules(benchmark)
