"""How far captured steps run ahead of the device, with a device that ends steps when told to."""

import time

import pytest
import torch

from timetrial.runner.core.errors import LostRank
from timetrial.runner.training import run_ahead


class Device:
    """Ends one submitted step for every `seconds` that pass; never for None."""

    def __init__(self, seconds):
        self.seconds, self.submitted, self.started = seconds, 0, time.monotonic()

    def event(self, device):
        return Event(self)

    @property
    def ended(self):
        return 0 if self.seconds is None else (time.monotonic() - self.started) / self.seconds


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.submitted += 1
        self.number = self.device.submitted

    def query(self):
        return self.device.ended >= self.number


@pytest.fixture
def start(monkeypatch):
    def start(seconds_per_step, timeout_seconds):
        device = Device(seconds_per_step)
        monkeypatch.setattr(torch, "Event", device.event)
        return device, run_ahead.RunAhead(torch.device("cpu"), timeout_seconds)

    return start


def test_host_stays_a_few_steps_ahead(start):
    device, steps = start(0.002, 60)
    for number in range(1, 40):
        steps.step_submitted()
        assert number - device.ended <= run_ahead._STEPS_AHEAD
    steps.wait()
    assert device.ended >= 39


def test_device_that_no_longer_advances_is_a_lost_rank(start):
    _, steps = start(None, 0.05)
    for _ in range(run_ahead._STEPS_AHEAD):
        steps.step_submitted()
    with pytest.raises(LostRank, match=r"A training step did not end within 0\.05 s"):
        steps.step_submitted()
    with pytest.raises(LostRank):
        steps.wait()
