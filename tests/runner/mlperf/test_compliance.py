"""Compliance of logs: the official checker and our check of the sequence of keys, with readable problems."""

import contextlib
import json
import re

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.mlperf import compliance
from timetrial.runner.mlperf.log_writer import MLPerfLog
from timetrial.runner.training.engine import EvalResult, TrainingStats
from timetrial.runner.training.events import InitStarted
from timetrial.runner.training.loop import TrainingPlan, train_to_target

# Keys that may be missing: hyperparameters that the open division does not require, and our own keys.
OPTIONAL = (
    "opt_",
    "model_hp_",
    "input_hp_",
    "eval_hp_",
    "preproc_hp_",
    "seed_",
    "tracked_stats",
    "submission_poc_name",
)


class ScriptedEngine:
    """An engine whose evaluations have the given qualities."""

    def __init__(self, qualities=({"accuracy": 0.4}, {"accuracy": 0.6})):
        self.qualities, self.epoch = list(qualities), 0

    def mlperf_params(self):
        sizes = {"global_batch_size": 4, "gradient_accumulation_steps": 1, "train_samples": 8, "eval_samples": 4}
        return {**sizes, "opt_base_learning_rate": 0.1}

    def train_epoch(self, number):
        self.epoch = number
        return iter(())

    def synchronize(self):
        return TrainingStats(0.1)

    def evaluate(self):
        return EvalResult(self.qualities[self.epoch - 1])


def write_log(path, *, benchmark="ncf", division="open", target=None, plan=(1, 1, 2), engine=None):
    target = target or {"accuracy": 0.6}
    header = {"submission_division": division, "submission_benchmark": benchmark, "submission_org": "us"}
    header |= {"submission_platform": "here", "submission_status": "research", "submission_poc_name": "x", "seed": 3}
    log = MLPerfLog(path, header, target)
    with contextlib.closing(log):
        log(InitStarted())
        train_to_target(engine or ScriptedEngine(), TrainingPlan(target, *plan), [log])
    return path


def lines_of(path):
    return path.read_text().splitlines()


def key_of(line):
    return json.loads(line.split(":::MLLOG ")[1])["key"]


def test_complete_log_complies(tmp_path):
    verdict = compliance.check(write_log(tmp_path / "log.txt"))
    assert verdict.compliant, verdict.problems
    assert verdict.rules == "0.7.0 keys, own target"


def test_every_missing_required_line_is_named(tmp_path):
    lines, removed = lines_of(write_log(tmp_path / "log.txt")), []
    for index, line in enumerate(lines):
        key = key_of(line)
        if key.startswith(OPTIONAL) or key == "timetrial_version":
            continue
        path = tmp_path / "without_line.txt"
        path.write_text("\n".join(lines[:index] + lines[index + 1 :]) + "\n")
        verdict = compliance.check(path)
        assert not verdict.compliant, key
        assert any(key in problem for problem in verdict.problems), (key, verdict.problems)
        removed.append(key)
    assert {"init_start", "run_start", "run_stop", "seed", "eval_start", "eval_stop", "epoch_stop"} <= set(removed)
    assert len(removed) >= 28


def test_log_that_misses_the_target_does_not_comply(tmp_path):
    engine = ScriptedEngine([{"accuracy": 0.4}, {"accuracy": 0.5}])
    verdict = compliance.check(write_log(tmp_path / "log.txt", engine=engine))
    assert not verdict.compliant
    assert verdict.problems == [
        "No eval_accuracy line reaches the target (0.6) below 1: train longer, or call it not converged."
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quality_target", "0.6); __import__('os').mkdir('made') #", "is no quality"),
        ("quality_target", {"accuracy'] or print(1) #": 0.5}, "is no quality"),
        ("quality_target", True, "is no quality"),
        ("quality_target", {}, "is no quality"),
        ("submission_benchmark", "x' or __import__('os').mkdir('made') or '", "is no name"),
        ("submission_benchmark", 7, "is no name"),
        ("submission_division", "../../open", "is no name"),
        ("eval_accuracy", [0.1], "eval_accuracy"),
        ("eval_accuracy", None, "eval_accuracy"),
        ("eval_accuracy", {"other": 1}, "eval_accuracy"),
    ],
)
def test_malicious_values_are_reported_and_not_executed(tmp_path, monkeypatch, key, value, message):
    monkeypatch.chdir(tmp_path)
    lines = lines_of(write_log(tmp_path / "log.txt"))
    for index, line in enumerate(lines):
        event = json.loads(line.split(":::MLLOG ")[1])
        if event["key"] == key:
            lines[index] = ":::MLLOG " + json.dumps(event | {"value": value})
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    verdict = compliance.check(tmp_path / "log.txt")
    assert not verdict.compliant
    assert any(message in problem for problem in verdict.problems), verdict.problems
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.parametrize(
    "event", [[], 3, {"key": 1}, {"key": "x", "value": 1}, {"key": "x", "value": 1, "time_ms": 0, "metadata": 3}]
)
def test_malformed_log_entry_is_reported(tmp_path, event):
    (tmp_path / "log.txt").write_text(f":::MLLOG {json.dumps(event)}\n")
    verdict = compliance.check(tmp_path / "log.txt")
    assert not verdict.compliant
    assert any(":::MLLOG line" in problem for problem in verdict.problems), verdict.problems


def test_several_epochs_per_block_and_two_metrics_comply(tmp_path):
    engine = ScriptedEngine([None, {"BBOX": 0.3, "SEGM": 0.2}, None, {"BBOX": 0.38, "SEGM": 0.35}])
    target = {"BBOX": 0.377, "SEGM": 0.339}
    log = write_log(tmp_path / "log.txt", benchmark="maskrcnn", target=target, plan=(2, 2, 4), engine=engine)
    verdict = compliance.check(log)
    assert verdict.compliant, verdict.problems
    assert verdict.rules == "open, 0.7.0"  # these are the official targets


def test_closed_rules_require_their_hyperparameters(tmp_path):
    engine = ScriptedEngine([{"bleu": 0.25}])
    log = write_log(tmp_path / "log.txt", benchmark="gnmt", division="closed", target={"bleu": 0.24}, engine=engine)
    verdict = compliance.check(log)
    assert verdict.rules == "closed, 0.7.0"
    assert any("max_sequence_length" in problem for problem in verdict.problems)


def test_changed_target_keeps_the_other_closed_rules(tmp_path):
    engine = ScriptedEngine([{"bleu": 0.22}])
    log = write_log(tmp_path / "log.txt", benchmark="gnmt", division="closed", target={"bleu": 0.218}, engine=engine)
    verdict = compliance.check(log)
    assert verdict.rules == "0.7.0 keys, own target"
    assert any("max_sequence_length" in problem for problem in verdict.problems)
    assert not any("target" in problem for problem in verdict.problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no :::MLLOG line"),
        ("epoch 1 done\n", "holds no :::MLLOG line"),
        (':::MLLOG {"key": "run_start", "value": null, "metadata": {}}\n', "lacks the field 'time_ms'"),
        (":::MLLOG {broken\n", "cannot be read"),
        (':::MLLOG {"time_ms": 1, "key": "submission_benchmark", "value": "bert9", "metadata": {}}\n', "'bert9'"),
    ],
)
def test_file_that_is_not_a_log_is_explained(tmp_path, text, message):
    (tmp_path / "log.txt").write_text(text)
    verdict = compliance.check(tmp_path / "log.txt")
    assert not verdict.compliant
    assert any(message in problem for problem in verdict.problems), verdict.problems


def test_unreadable_quality_is_explained(tmp_path):
    log = write_log(tmp_path / "log.txt")
    log.write_text(re.sub(r'("key": "eval_accuracy", "value": )[\d.]+', r"\1null", log.read_text()))
    assert any("no quality that the rules can read" in problem for problem in compliance.check(log).problems)


def test_official_checker_agrees(tmp_path):
    from mlperf_logging.compliance_checker import mlp_compliance

    log = write_log(
        tmp_path / "log.txt", benchmark="gnmt", target={"bleu": 0.24}, engine=ScriptedEngine([{"bleu": 0.25}])
    )
    checker = mlp_compliance.make_checker("training", "0.7.0", True, False)
    mlp_compliance.enqueued_configs.clear()
    assert mlp_compliance.main(str(log), "training_0.7.0/common.yaml", checker)[0]
    assert compliance.check(log).compliant


def test_full_disk_raises_a_run_error(tmp_path):
    from timetrial.runner.core.errors import RunError

    (tmp_path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"No space left on device.*free space") as caught:
        write_log(tmp_path / "log.txt")
    assert caught.value.exit_code == Exit.FAILURE
