"""Verdicts on logs: the official checker, our own checks, runs without their target, and stopped runs."""

import bz2
import contextlib
import gzip
import json
import lzma
import re
import time

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.mlperf import compliance
from timetrial.runner.mlperf.log_writer import MLPerfLog
from timetrial.runner.record.run_record import ComplianceVerdict
from timetrial.runner.training.events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    InitStarted,
    RunStarted,
    RunStopped,
)

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


def start_log(path, header, engine, resumed_from=None):
    log = MLPerfLog(path, header, {"accuracy": 0.6})
    if resumed_from:
        log.load_state_dict(resumed_from)
    log(InitStarted())
    log(RunStarted(params=engine.mlperf_params()))
    return log


def log_block(log, samples):
    log(BlockStarted(first_epoch=1, epochs=1))
    time.sleep(0.002)  # logs count milliseconds
    log(BlockEnded(first_epoch=1, epochs=1, samples=samples, loss=0.1))
    log(EvalStarted(epoch=1))
    log(EvalEnded(epoch=1, quality={"accuracy": 0.6}))
    log(RunStopped(status="success"))


def lines_of(path):
    return path.read_text().splitlines()


def key_of(line):
    return json.loads(line.split(":::MLLOG ")[1])["key"]


def test_complete_log_complies(tmp_path, write_log):
    verdict = compliance.check(write_log(tmp_path / "log.txt"))
    assert verdict.compliant, verdict.problems
    assert verdict.rules == "0.7.0 keys, own target"


def test_perfect_quality_complies(tmp_path, write_log, scripted_engine):
    log = write_log(tmp_path / "log.txt", engine=scripted_engine([{"accuracy": 1.0}]))
    verdict = compliance.check(log)
    assert verdict.summary == "complies", verdict.problems


def test_every_missing_required_line_is_named(tmp_path, write_log):
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


def test_log_that_misses_the_target_complies(tmp_path, write_log, scripted_engine):
    engine = scripted_engine([{"accuracy": 0.4}, {"accuracy": 0.5}])
    verdict = compliance.check(write_log(tmp_path / "log.txt", engine=engine))
    assert verdict == ComplianceVerdict(True, "0.7.0 keys, own target", (), converged=False)
    assert verdict.summary == "complies, not converged"


def test_missed_target_does_not_excuse_other_problems(tmp_path, write_log, scripted_engine):
    log = write_log(tmp_path / "log.txt", engine=scripted_engine([{"accuracy": 0.4}, {"accuracy": 0.5}]))
    log.write_text("".join(line for line in log.read_text().splitlines(True) if key_of(line) != "seed"))
    verdict = compliance.check(log)
    assert (verdict.summary, verdict.converged) == ("does not comply", False)
    assert verdict.problems == ("The line seed is missing: it is needed to repeat the run.",)


def test_success_without_reaching_the_target_does_not_comply(tmp_path, write_log):
    log = write_log(tmp_path / "log.txt")
    log.write_text(log.read_text().replace('"eval_accuracy", "value": 0.6', '"eval_accuracy", "value": 0.5'))
    verdict = compliance.check(log)
    assert (verdict.compliant, verdict.converged) == (False, False)
    assert verdict.problems == (
        "No eval_accuracy line reaches the target (0.6), but run_stop has the status 'success': "
        "log the status aborted for a run that misses its target.",
    )


@pytest.mark.parametrize("stop_at", [0, 1, 2, 3])  # at the start and at the last step of the first and second epoch
def test_stopped_run_is_not_judged(tmp_path, stop_at, write_log):
    log = write_log(tmp_path / "log.txt", stop_at=stop_at)
    assert compliance.check(log) == ComplianceVerdict(None, "none", (), converged=False)
    log.write_text("".join(log.read_text().splitlines(True)[:-1]))  # killed before it could log run_stop
    assert compliance.check(log).summary == "stopped, not judged"


def test_run_stopped_during_initialization_is_not_judged(tmp_path):
    with contextlib.closing(MLPerfLog(tmp_path / "log.txt", {}, {"accuracy": 0.6})) as log:
        log(InitStarted())
    assert compliance.check(tmp_path / "log.txt").compliant is None


@pytest.mark.parametrize("qualities", [(0.4, 0.6), (0.4, 0.5)])
@pytest.mark.parametrize("key", ["run_start", "run_stop"])
def test_clock_that_starts_or_stops_twice_does_not_comply(tmp_path, key, qualities, write_log, scripted_engine):
    engine = scripted_engine([{"accuracy": quality} for quality in qualities])
    log = write_log(tmp_path / "log.txt", engine=engine)
    lines = log.read_text().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if key_of(line) == key)
    log.write_text("".join([*lines[: place + 1], *lines[place:]]))
    verdict = compliance.check(log)
    assert verdict.compliant is False
    assert verdict.problems == (f"The line {key} occurs 2 times: the rules allow one.",)


def test_second_run_stop_of_a_stopped_run_does_not_comply(tmp_path, write_log):
    log = write_log(tmp_path / "log.txt", stop_at=3)
    log.write_text(log.read_text() + log.read_text().splitlines()[-1] + "\n")
    assert "The line run_stop occurs 2 times: the rules allow one." in compliance.check(log).problems


def test_block_of_0_samples_does_not_comply(tmp_path, write_log, scripted_engine):
    log = write_log(tmp_path / "log.txt", engine=scripted_engine([{"accuracy": 0.6}], samples=0))
    verdict = compliance.check(log)
    assert verdict.compliant is False
    assert verdict.problems == ("The block that ends with epoch 1 trained 0 samples.",)


def test_block_that_was_interrupted_after_its_last_step_complies(tmp_path, log_header, scripted_engine):
    """Its samples were trained before the interruption; the resumed attempt evaluates only."""
    arguments = tmp_path / "log.txt", log_header, scripted_engine()
    with contextlib.closing(start_log(*arguments)) as log:
        log(BlockStarted(first_epoch=1, epochs=1))
        state = log.state_dict()
    resumed = start_log(*arguments, state)
    with contextlib.closing(resumed):
        log_block(resumed, samples=0)
    assert compliance.check(tmp_path / "log.txt").compliant


@pytest.mark.parametrize(
    "event", [[], 3, {"key": 1}, {"key": "x", "value": 1}, {"key": "x", "value": 1, "time_ms": 0, "metadata": 3}]
)
def test_malformed_log_entry_is_reported(tmp_path, event):
    (tmp_path / "log.txt").write_text(f":::MLLOG {json.dumps(event)}\n")
    verdict = compliance.check(tmp_path / "log.txt")
    assert not verdict.compliant
    assert any(":::MLLOG line" in problem for problem in verdict.problems), verdict.problems


@pytest.mark.parametrize(
    ("division", "cleared", "complains"),
    [("closed", "false", True), ("closed", "true", False), ("open", "false", False)],
)
def test_closed_log_states_that_caches_were_cleared(tmp_path, division, cleared, complains, write_log, scripted_engine):
    engine = scripted_engine([{"bleu": 0.6}])
    log = write_log(tmp_path / "log.txt", benchmark="gnmt", division=division, target={"bleu": 0.6}, engine=engine)
    log.write_text(log.read_text().replace('"cache_clear", "value": false', f'"cache_clear", "value": {cleared}'))
    assert any("caches cleared" in problem for problem in compliance.check(log).problems) == complains


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no :::MLLOG line"),
        ("epoch 1 done\n", "contains no :::MLLOG line"),
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


def test_unreadable_quality_is_explained(tmp_path, write_log):
    log = write_log(tmp_path / "log.txt")
    log.write_text(re.sub(r'("key": "eval_accuracy", "value": )[\d.]+', r"\1null", log.read_text()))
    assert any("no quality that the rules can read" in problem for problem in compliance.check(log).problems)


def test_full_disk_raises_a_run_error(tmp_path, write_log):
    from timetrial.runner.core.errors import RunError

    (tmp_path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"No space left on device.*free space") as caught:
        write_log(tmp_path / "log.txt")
    assert caught.value.exit_code == Exit.DISK_FULL


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_log_is_said_to_be_compressed(tmp_path, compress):
    path = tmp_path / "result_0.txt.z"
    path.write_bytes(compress(b":::MLLOG {}"))
    (problem,) = compliance.check(path).problems
    assert "is compressed: unpack it" in problem
