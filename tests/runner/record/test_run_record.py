"""Transitions of the run record: what a start, the end of training and the end of a run change."""

from dataclasses import replace

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.attempt import Attempt
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.record.throughput_result import ThroughputResult

THROUGHPUT = ThroughputResult(
    20, 100.0, None, 10.0, 200.0, None, 5.0, 2.0, 0.1, 0.02, 1000, 100, (99.0,), (200.0,), 0.5, 1, None, True,
    None, None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("exit_code", "state"),
    [
        (Exit.TARGET_REACHED, "target reached"),
        (Exit.STOPPED, "stopped"),
        (Exit.NOT_COMPLIANT, "log not compliant"),
        (Exit.FAILURE, "failed"),
        (Exit.DISK_FULL, "failed"),
    ],
)
def test_state_of_an_ended_run_follows_from_its_exit_code(exit_code, state):
    record = RunRecord().ended(exit_code, "why")
    assert (record.state, record.exit_code, record.error, record.is_running) == (state, exit_code, "why", False)


def test_measured_run_has_a_state_of_its_own():
    record = replace(RunRecord(), throughput=THROUGHPUT)
    assert record.ended(Exit.TARGET_REACHED, "").state == "measured"
    assert record.ended(Exit.STOPPED, "").state == "stopped"


def test_attempt_clears_the_end_of_the_one_before_and_runs_until_it_is_judged():
    first, second = (Attempt(float(number), "host", number) for number in (1, 2))
    stopped = RunRecord().attempt_started(first, {}, {}).ended(Exit.STOPPED, "Stopped.")
    resumed = stopped.attempt_started(second, {"a": 1}, {"gpus": 1})
    assert (resumed.exit_code, resumed.error, resumed.is_running) == (None, "", True)
    assert (resumed.attempts, resumed.restarts) == ((first, second), 1)
    assert (resumed.environment, resumed.config) == ({"a": 1}, {"gpus": 1})
    trained = resumed.training_ended(Exit.TIME_LIMIT, "raise it")
    assert (trained.exit_code, trained.error, trained.is_running) == (11, "raise it", True)
