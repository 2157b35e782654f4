"""The device layer on the CPU."""

import time

import pytest
import torch

from timetrial.runner.core.errors import DeviceError
from timetrial.runner.hardware import devices

CPU = torch.device("cpu")


def test_timer_sums_spans_and_restarts():
    timer, began = devices.DeviceTimer(CPU), time.perf_counter()
    for _ in range(3):
        timer.start()
        time.sleep(0.02)
        timer.stop()
        time.sleep(0.05)
    elapsed = time.perf_counter() - began
    assert 3 * 0.02 <= timer.pop_seconds() <= elapsed - 3 * 0.05
    assert timer.pop_seconds() == 0


def test_cpu_does_not_support_tf32():
    devices.require_precision(CPU, "fp32")
    with pytest.raises(DeviceError, match="does not support TF32: use precision=fp32"):
        devices.require_precision(CPU, "tf32")


def test_host_copies_are_yielded_once_the_next_has_been_submitted():
    submitted = []

    def results():
        for number in range(3):
            submitted.append(number)
            yield [torch.full((2,), number), number]

    assert [(copy[0].tolist(), copy[1], len(submitted)) for copy in devices.host_copies(results())] == [
        ([0, 0], 0, 2),
        ([1, 1], 1, 3),
        ([2, 2], 2, 3),
    ]
    assert list(devices.host_copies([])) == []
