"""Published logs are judged by the rules of their own round, as the official checker judges them."""

import json
import logging

import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.core.errors import Exit
from timetrial.runner.mlperf import compliance, official_checker


@pytest.fixture
def published(tmp_path):
    """Return published(round, changes), the path of a log that says little more than its benchmark and its clock."""

    def write(round_, benchmark="llama31_8b", metadata=None, **changes):
        values = {
            "submission_benchmark": benchmark,
            "submission_division": "closed",
            "submission_org": "Maker",
            "submission_platform": "box",
            "submission_status": "onprem",
            "seed": 1,
            "run_start": None,
            "run_stop": None,
        }
        lines = []
        for number, (key, value) in enumerate((values | changes).items()):
            entry = {"namespace": "", "time_ms": 1000 * number, "event_type": "POINT_IN_TIME", "key": key}
            status = {"status": "success"} if key == "run_stop" else {}
            entry |= {
                "value": value,
                "metadata": {"file": "a.py", "lineno": 1, **status} if metadata is None else metadata,
            }
            lines.append(f":::MLLOG {json.dumps(entry)}")
        path = tmp_path / round_ / "Maker" / "result_0.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def official_problems(path, ruleset):
    """Return how many problems the official checker itself finds in a file."""
    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    logging.disable(logging.WARNING)
    try:
        checker.check_file(str(path), f"training_{ruleset}/common.yaml")
    finally:
        logging.disable(logging.NOTSET)
    return len(checker.overwritable) + len(checker.not_overwritable)


@pytest.mark.parametrize(("round_", "benchmark"), [("v2.0", "bert"), ("v5.0", "bert"), ("v5.1", "llama31_8b")])
def test_the_folder_names_the_rules(published, round_, benchmark):
    path, ruleset = published(round_, benchmark), f"{round_[1:]}.0"
    verdict = compliance.check(path)
    assert verdict.rules == f"closed, {ruleset}"
    assert len(verdict.problems) == official_problems(path, ruleset) > 3


def test_without_a_folder_the_newest_rules_that_know_the_benchmark_apply(published):
    newest = official_checker.rulesets()[0]
    assert compliance.check(published("logs", "llama31_8b")).rules == f"closed, {newest}"
    assert compliance.check(published("logs", "gnmt")).rules == "closed, 0.7.0"
    assert compliance.check(published("logs", "bert"), "2.1.0").rules == "closed, 2.1.0"


def test_metadata_may_be_a_text(published):
    path = published("v5.1", metadata="")
    assert len(compliance.check(path).problems) == official_problems(path, "5.1.0")
    assert not any("cannot be read" in problem for problem in compliance.check(path).problems)


def test_rounds_without_rules_are_not_judged(published):
    verdict = compliance.check(published("v0.5", "ncf"))
    assert (verdict.compliant, verdict.summary) == (None, "not judged")
    assert verdict.problems == ("The official checker has no rules of MLPerf v0.5, so the log is not judged.",)


def test_unknown_rules_are_refused(published):
    result = CliRunner().invoke(app, ["check", str(published("v5.1")), "--ruleset", "9.9.0"])
    assert result.exception.exit_code == Exit.CONFIGURATION
    assert "--ruleset 9.9.0 is none of the official checker's rules: " in str(result.exception)
