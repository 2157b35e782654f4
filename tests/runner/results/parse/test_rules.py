"""Targets and runs per score, compared with the rule files of MLPerf's own checkers."""

import re
from pathlib import Path

import pytest
from mlperf_logging import benchmark_meta, compliance_checker

from timetrial.runner.results.parse import rules

RULES = Path(compliance_checker.__file__).parent
CHECK = re.compile(r'NAME:\s+(?:eval_accuracy|aggregated_eval_accuracy)\n.*?ATLEAST_ONE_CHECK:\s*"([^"]+)"', re.DOTALL)


def official_targets():
    """Yield round, benchmark and the expression that an evaluation at the target fulfils."""
    for path in sorted(RULES.glob("training_*/closed_*.yaml")):
        match = CHECK.search(path.read_text())
        if match and "target_accuracy" not in match[1]:
            yield "v" + path.parent.name.split("_")[1].removesuffix(".0"), path.stem.removeprefix("closed_"), match[1]


def fulfils(expression, quality):
    value = quality if len(quality) > 1 else next(iter(quality.values()))
    return eval(expression, {"v": {"value": value}, "s": {"global_batch_size": 1}})


@pytest.mark.parametrize(("round_", "benchmark", "expression"), [*official_targets()])
def test_target_is_that_of_the_checker(round_, benchmark, expression):
    target = dict(rules.quality_target(benchmark, round_))
    assert fulfils(expression, target)
    for metric in target:
        worse = 1 + 1e-9 if metric in rules.LOWER_IS_BETTER else 1 - 1e-9
        assert not fulfils(expression, {**target, metric: target[metric] * worse})


def test_the_checker_has_every_benchmark_of_rounds_v41_to_v51():
    """The list of cases above must not be empty by mistake."""
    cases = {(round_, benchmark) for round_, benchmark, _ in official_targets()}
    for round_ in ("v4.1", "v5.0", "v5.1"):
        for benchmark in benchmark_meta.get_allowed_benchmarks("training", round_.removeprefix("v")):
            assert (round_, benchmark) in cases
            assert rules.is_benchmark(benchmark)


def test_runs_per_score_are_those_of_the_summarizer():
    official = benchmark_meta.get_result_file_counts("training")
    known = {name: rules.runs_per_score(name) for name in official if rules.is_benchmark(name)}
    known["ncf"] = 10  # 50 in v0.5, the only round that had NCF
    assert known == {name: official[name] for name in known}
    assert len(known) >= 20


@pytest.mark.parametrize(
    ("benchmark", "round_", "model"),
    [
        ("ssd", "v1.1", "ssd"),
        ("ssd", "v2.0", "retinanet"),
        ("retinanet", "v5.0", "retinanet"),
        ("gnn", "v4.1", "rgat"),
        ("rgat", "v5.0", "rgat"),
    ],
)
def test_renamed_benchmarks_have_one_model(benchmark, round_, model):
    assert rules.model_name(rules.canonical_benchmark(benchmark), round_) == model


def test_a_round_before_the_first_has_no_target():
    assert rules.quality_target("flux1", "v5.0") is None
    assert rules.quality_target("cosmoflow", "v5.0") is None
