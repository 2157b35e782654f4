"""`timetrial check` on logs of strangers: it ends, with a verdict in sentences."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.core.errors import Exit
from timetrial.runner.mlperf import compliance

START = 1_600_000_000_000


def line(key, value=None, **metadata):
    time_ms = START + 1000 * (key == "run_stop")
    return ":::MLLOG " + json.dumps({"key": key, "value": value, "time_ms": time_ms, "metadata": metadata})


def at(time_ms, text):
    """Return a line with another time."""
    return text.replace(str(START), str(time_ms)).replace(str(START + 1000), str(time_ms))


HEADER = {"submission_benchmark": "ncf", "submission_division": "open", "submission_org": "us", "seed": 3}
HEADER |= {"submission_platform": "here", "submission_status": "research", "quality_target": 0.5, "cache_clear": True}
HEADER |= {"global_batch_size": 4, "gradient_accumulation_steps": 1, "train_samples": 8, "eval_samples": 4}
SOUND = [
    *(line(key, value) for key, value in HEADER.items()),
    line("init_start"),
    line("init_stop"),
    line("run_start"),
    line("block_start", first_epoch_num=1, epoch_count=1),
    line("epoch_start", epoch_num=1),
    line("epoch_stop", epoch_num=1),
    line("eval_start", epoch_num=1),
    line("eval_accuracy", 0.6, epoch_num=1),
    line("eval_stop", epoch_num=1),
    line("block_stop", first_epoch_num=1),
    line("run_stop", status="success"),
]


@pytest.fixture
def judge(tmp_path):
    """Return a function that checks lines as a log."""

    def check(*lines):
        path = tmp_path / "result_0.txt"
        path.write_text("\n".join(lines) + "\n")
        return compliance.check(path)

    return check


def test_the_sound_log_complies(judge):
    assert judge(*SOUND).problems == ()


@pytest.mark.parametrize(
    ("hostile", "problem"),
    [
        (":::MLLOG " + "x" * 20_000_000, "longer than 100000 characters"),
        (":::MLLOG " * 200_000 + "{}", "lacks the field 'time_ms'"),
        # Python 3.14 words it otherwise.
        (":::MLLOG " + "[" * 50_000, "maximum recursion depth" if sys.version_info < (3, 14) else "cannot be read"),
        (line("opt_name") + "," * 90_000, "Extra data"),
        (line("opt_name", [[[[1]]]]).replace("[" * 4, "[" * 50).replace("]" * 4, "]" * 50), "more than 32 deep"),
        (line("global_batch_size", float("nan")), "it holds nan beyond any result"),
        (line("global_batch_size", float("-inf")), "it holds -inf beyond any result"),
        (line("global_batch_size", 10**400), "it holds an integer beyond any result"),
        (line("opt_name").replace("null", "9" * 5000), "cannot be read"),
        (line("opt_name").replace(str(START), "NaN"), "cannot be read"),
        (":::MLLOG 5", "is not a log entry"),
        (line("run_stop", status="success"), "The line run_stop occurs 2 times: the rules allow one."),
        (line("run_start"), "The line run_start occurs 2 times: the rules allow one."),
    ],
)
def test_hostile_line_does_not_comply(judge, hostile, problem):
    verdict = judge(*SOUND[:-1], hostile, SOUND[-1])
    assert verdict.compliant is False
    assert any(problem in sentence for sentence in verdict.problems), verdict.problems
    assert max(map(len, verdict.problems)) < 400


@pytest.mark.parametrize("seconds", [0, -1, -START // 1000 - 1])
def test_clock_that_stops_before_it_starts_does_not_comply(judge, seconds):
    assert judge(*SOUND[:-1], at(START + 1000 * seconds, SOUND[-1])).problems == (
        "The line run_stop is not later than run_start, so the log states no time to train.",
    )


@pytest.mark.parametrize(
    ("hostile", "problem"),
    [
        (at(START - 1, line("opt_name", "sgd")), "The line opt_name has an earlier time than the line before it"),
        (at(-5, line("opt_name", "sgd")), "The line opt_name has an earlier time than the line before it"),
        (line("quality_target", 0.4), "The line quality_target occurs with different values"),
    ],
)
def test_own_log_that_contradicts_itself_does_not_comply(judge, hostile, problem):
    version = line("timetrial_version", "1")
    assert judge(version, *SOUND).problems == ()
    (found,) = judge(version, *SOUND[:-1], hostile, SOUND[-1]).problems
    assert problem in found


def test_own_log_without_a_batch_does_not_comply(judge):
    lines = [text.replace('"global_batch_size", "value": 4', '"global_batch_size", "value": 0') for text in SOUND]
    (found,) = judge(line("timetrial_version", "1"), *lines).problems
    assert found == "The value of global_batch_size is 0: a batch has at least one sample."


@pytest.mark.parametrize("make", ["pipe", "zero", "folder", "large"])
def test_special_file_is_refused_in_a_sentence(tmp_path, make):
    path = tmp_path / "result_0.txt"
    match make:
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "folder":
            (path / "below").mkdir(parents=True)
        case _:
            with open(path, "wb") as file:
                file.truncate(2**40)
    verdict = compliance.check(path)
    assert verdict.compliant is False
    assert "cannot be read" in verdict.problems[0]


def test_command_shows_invisible_characters(tmp_path):
    name = os.fsdecode(b"result_\xff\x1b[31m.txt")
    (tmp_path / name).write_text(SOUND[0] + "\n" + line("\x1b[31m\u202e[/nope]") + "\n:::MLLOG {\x1b[31m\n")
    outcome = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert outcome.exit_code == Exit.NOT_COMPLIANT, repr(outcome.exception)
    assert "\x1b" not in outcome.stdout
    assert "\\x1b[31m" in outcome.stdout
