"""The timer of device work, on the host's clock."""

import time

import torch

from timetrial.runner.hardware.device_timing import DeviceTimer

CPU = torch.device("cpu")


def test_timer_sums_spans_and_restarts():
    timer, began = DeviceTimer(CPU), time.perf_counter()
    for _ in range(3):
        timer.start()
        time.sleep(0.02)
        timer.stop()
        time.sleep(0.05)
    elapsed = time.perf_counter() - began
    assert 3 * 0.02 <= timer.pop_seconds() <= elapsed - 3 * 0.05
    assert timer.pop_seconds() == 0


def test_timer_times_how_long_items_take_to_arrive():
    def items():
        for number in range(3):
            time.sleep(0.02)
            yield number

    timer, began = DeviceTimer(CPU), time.perf_counter()
    for _ in timer.timed(items()):
        time.sleep(0.05)
    elapsed = time.perf_counter() - began
    assert 3 * 0.02 <= timer.pop_seconds() <= elapsed - 3 * 0.05
