"""The clock of a run: durations are those of the monotonic clock, whatever happens to the wall clock."""

import time

import pytest

from timetrial.runner.training import clock


@pytest.fixture
def shift_wall_clock(monkeypatch):
    """Set the wall clock by seconds: shift_wall_clock(3600)."""
    true_time = time.time
    yield lambda seconds: monkeypatch.setattr(time, "time", lambda: true_time() + seconds)
    monkeypatch.undo()
    clock.start_clock()


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_clock_that_is_set_changes_no_duration(shift_wall_clock, seconds):
    clock.start_clock()
    before = clock.now()
    shift_wall_clock(seconds)
    assert 0 <= clock.now() - before < 60
    assert clock.wall_clock_lead() == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_clock_that_is_set_between_two_attempts_of_one_boot(shift_wall_clock, seconds):
    if clock.read_clock()["boot"] is None:
        pytest.skip("describes a machine that states its boot")
    clock.start_clock()
    reading = clock.read_clock()
    shift_wall_clock(seconds)
    assert clock.start_clock(reading) == pytest.approx(seconds, abs=1)
    assert 0 <= clock.now() - reading["time"] < 60


def test_time_since_the_boot_counts_between_two_attempts():
    reading = clock.read_clock()
    if reading["boot"] is None:
        pytest.skip("describes a machine that states its boot")
    lead = clock.start_clock(reading | {"since_boot": reading["since_boot"] - 600})
    assert clock.now() - reading["time"] == pytest.approx(600, abs=60)
    assert lead == pytest.approx(-600, abs=60)
    clock.start_clock()


def test_clock_of_another_machine_is_used_unless_it_is_behind(shift_wall_clock):
    reading = clock.read_clock() | {"boot": "another"}
    assert clock.start_clock(reading) == pytest.approx(0, abs=1)
    shift_wall_clock(-3600)
    assert clock.start_clock(reading) == pytest.approx(-3600, abs=60)
    assert clock.now() >= reading["time"]
    shift_wall_clock(3600)  # which may be true
    assert clock.start_clock(reading) == pytest.approx(0, abs=1)
    assert clock.now() - reading["time"] == pytest.approx(3600, abs=60)
