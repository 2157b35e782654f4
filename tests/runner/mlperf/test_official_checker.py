"""Which rules the official checker applies: those of a division, or derived ones for a target of the log's own."""

import json

import pytest

from timetrial.runner.mlperf import compliance


def test_several_epochs_per_block_and_two_metrics_comply(tmp_path, write_log, scripted_engine):
    engine = scripted_engine([None, {"BBOX": 0.3, "SEGM": 0.2}, None, {"BBOX": 0.38, "SEGM": 0.35}])
    target = {"BBOX": 0.377, "SEGM": 0.339}
    log = write_log(tmp_path / "log.txt", benchmark="maskrcnn", target=target, plan=(2, 2, 4), engine=engine)
    verdict = compliance.check(log)
    assert verdict.compliant, verdict.problems
    assert verdict.rules == "open, 0.7.0"  # these are the official targets


def test_closed_rules_require_their_hyperparameters(tmp_path, write_log, scripted_engine):
    engine = scripted_engine([{"bleu": 0.25}])
    log = write_log(tmp_path / "log.txt", benchmark="gnmt", division="closed", target={"bleu": 0.24}, engine=engine)
    verdict = compliance.check(log)
    assert verdict.rules == "closed, 0.7.0"
    assert any("max_sequence_length" in problem for problem in verdict.problems)


@pytest.mark.parametrize(("division", "rules"), [("open", "0.7.0 keys, own target"), ("closed", "closed, 0.7.0")])
def test_only_an_open_log_may_state_its_own_target(tmp_path, division, rules, write_log, scripted_engine):
    engine = scripted_engine([{"bleu": 0.22}])
    log = write_log(tmp_path / "log.txt", benchmark="gnmt", division=division, target={"bleu": 0.218}, engine=engine)
    verdict = compliance.check(log)
    assert (verdict.rules, verdict.converged) == (rules, division == "open")
    assert any("max_sequence_length" in problem for problem in verdict.problems) == (division == "closed")
    assert any("reaches the target" in problem for problem in verdict.problems) == (division == "closed")


def test_closed_log_of_a_benchmark_without_closed_rules_does_not_comply(tmp_path, write_log):
    verdict = compliance.check(write_log(tmp_path / "log.txt", benchmark="ncf", division="closed"))
    assert not verdict.compliant
    assert "Ruleset 0.7.0 has no rules for benchmark 'ncf' in this division." in verdict.problems


@pytest.mark.parametrize(("target", "converged"), [(1.5, True), (1.4, False)])
def test_a_loss_is_judged_at_or_below_its_target(tmp_path, target, converged, write_log, scripted_engine):
    """Losses of 1.7 and 1.5, which the rules for fractions would refuse."""
    engine = scripted_engine()
    engine.qualities = [{"log_perplexity": loss} for loss in (1.7, 1.5)]
    target = {"log_perplexity": target}
    path = write_log(tmp_path / "log.txt", benchmark="gpt", target=target, engine=engine, is_loss=True)
    verdict = compliance.check(path)
    assert (verdict.compliant, verdict.converged) == (True, converged), verdict.problems
    path.write_text(path.read_text().replace(', "lower_is_better": true', ""))
    assert not compliance.check(path).converged


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quality_target", "0.6); __import__('os').mkdir('made') #", "is not a quality"),
        ("quality_target", {"accuracy'] or print(1) #": 0.5}, "is not a quality"),
        ("quality_target", True, "is not a quality"),
        ("quality_target", {}, "is not a quality"),
        ("submission_benchmark", "x' or __import__('os').mkdir('made') or '", "is not a name"),
        ("submission_benchmark", 7, "is not a name"),
        ("submission_division", "../../open", "is not a name"),
        ("eval_accuracy", [0.1], "eval_accuracy"),
        ("eval_accuracy", None, "eval_accuracy"),
        ("eval_accuracy", {"other": 1}, "eval_accuracy"),
    ],
)
def test_malicious_values_are_reported_and_not_executed(tmp_path, monkeypatch, key, value, message, write_log):
    monkeypatch.chdir(tmp_path)
    lines = write_log(tmp_path / "log.txt").read_text().splitlines()
    for index, line in enumerate(lines):
        event = json.loads(line.split(":::MLLOG ")[1])
        if event["key"] == key:
            lines[index] = ":::MLLOG " + json.dumps(event | {"value": value})
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    verdict = compliance.check(tmp_path / "log.txt")
    assert not verdict.compliant
    assert any(message in problem for problem in verdict.problems), verdict.problems
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_official_checker_agrees(tmp_path, write_log, scripted_engine):
    from mlperf_logging.compliance_checker import mlp_compliance

    log = write_log(
        tmp_path / "log.txt", benchmark="gnmt", target={"bleu": 0.24}, engine=scripted_engine([{"bleu": 0.25}])
    )
    checker = mlp_compliance.make_checker("training", "0.7.0", True, False)
    mlp_compliance.enqueued_configs.clear()
    assert mlp_compliance.main(str(log), "training_0.7.0/common.yaml", checker)[0]
    assert compliance.check(log).compliant
