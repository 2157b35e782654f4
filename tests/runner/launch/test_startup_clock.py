"""The seconds before the clock, by phase."""

from types import SimpleNamespace

import pytest

from timetrial.runner.launch import startup_clock
from timetrial.runner.record.attempt import Attempt


@pytest.fixture
def clock(monkeypatch):
    """A clock of a rank that takes two seconds for each phase."""
    monkeypatch.delenv(startup_clock.RANK_STARTED, raising=False)
    moments = iter(range(102, 200, 2))
    # The module's own clock: other threads of this process read time.time too.
    monkeypatch.setattr(startup_clock, "time", SimpleNamespace(time=lambda: next(moments)))
    return startup_clock.StartupClock(Attempt(100.0, "host", 1, {"configuration": 1.5}))


def test_kernels_are_a_phase_of_their_own(clock):
    clock.end("warming up")
    clock.split("warming up", "compiling Triton kernels", 0.75)
    assert clock.seconds == {
        "configuration": 1.5,
        "data preparation": 2.0,
        "warming up": 1.25,
        "compiling Triton kernels": 0.75,
    }
    assert str(clock).startswith("ready after 5.5 s: configuration 1.5")


def test_a_warm_start_has_no_such_phase(clock):
    clock.end("warming up")
    clock.split("warming up", "compiling Triton kernels", 0.0)
    assert list(clock.seconds) == ["configuration", "data preparation", "warming up"]
