"""Logs of scripted runs."""

import contextlib
import itertools
import time

import pytest

from timetrial.runner.mlperf.log_writer import MLPerfLog
from timetrial.runner.training.engine import EvalResult, StepResult, TrainingStats
from timetrial.runner.training.events import InitStarted
from timetrial.runner.training.loop import TrainingPlan, train_to_target

HEADER = {
    "submission_division": "open",
    "submission_benchmark": "ncf",
    "submission_org": "us",
    "submission_platform": "here",
    "submission_status": "research",
    "submission_poc_name": "x",
    "seed": 3,
}


class ScriptedEngine:
    """An engine whose evaluations have the given qualities; an epoch is one step of `samples` samples."""

    def __init__(self, qualities=({"accuracy": 0.4}, {"accuracy": 0.6}), samples=8):
        self.qualities, self.samples, self.epoch = list(qualities), samples, 0

    def mlperf_params(self):
        sizes = {"global_batch_size": 4, "gradient_accumulation_steps": 1, "train_samples": 8, "eval_samples": 4}
        return {**sizes, "opt_base_learning_rate": 0.1}

    def open_data(self):
        time.sleep(0.002)  # logs count milliseconds, and a run takes at least one

    def train_epoch(self, number):
        self.epoch = number
        return iter([StepResult(self.samples)])

    def synchronize(self):
        return TrainingStats(0.1)

    def evaluate(self, stop_requested):
        return EvalResult(self.qualities[self.epoch - 1])


@pytest.fixture
def scripted_engine():
    """An engine whose evaluations have given qualities."""
    return ScriptedEngine


@pytest.fixture
def log_header():
    """The header of a log."""
    return HEADER


@pytest.fixture
def write_log():
    """Return a function that writes the log of a scripted run.

    `stop_at` counts the requests to stop, two per epoch, before the run is stopped.
    """

    def write(
        path, *, benchmark="ncf", division="open", target=None, plan=(1, 1, 2), engine=None, stop_at=None, is_loss=False
    ):
        requests, target = itertools.count(), target or {"accuracy": 0.6}
        header = HEADER | {"submission_division": division, "submission_benchmark": benchmark}
        log = MLPerfLog(path, header, target, lower_is_better=is_loss)
        with contextlib.closing(log):
            log(InitStarted())
            train_to_target(
                engine or ScriptedEngine(),
                TrainingPlan(target, *plan, lower_is_better=is_loss),
                [log],
                should_stop=lambda: next(requests) == stop_at,
            )
        return path

    return write
