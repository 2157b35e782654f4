"""The process that measures one device, without its measurements."""

import time

import pytest
import torch

from timetrial.runner.benchmarks.accept.device import REPLAY, DeviceMeasurement, Request
from timetrial.runner.core.errors import Exit, HardwareError


@pytest.fixture
def measurement(tmp_path):
    return DeviceMeasurement(Request((REPLAY,), "cpu", "cpu", time.time(), 1), tmp_path)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (RuntimeError("cumsum does not have a deterministic implementation, but you set\nmore"), Exit.DEVICE),
        (torch.OutOfMemoryError("out of memory"), Exit.OUT_OF_MEMORY),
        (HardwareError("the device is lost"), Exit.HARDWARE),
        (RuntimeError("something else"), Exit.FAILURE),
    ],
)
def test_a_part_that_fails_leaves_its_sentence_and_the_others_go_on(measurement, error, exit_code):
    with measurement._noting_problem("a part"):
        raise error
    with measurement._noting_problem("another part"):
        pass
    (problem,) = measurement._result.problems
    assert (problem.part, problem.exit_code) == ("a part", exit_code)
    assert problem.sentence
    assert "\n" not in problem.sentence
