"""Early stops: when ranks agree on one, and the error that a stop becomes."""

from types import SimpleNamespace

import pytest

from timetrial.runner.core.errors import Exit, Stopped, TimeLimit
from timetrial.runner.training import early_stop
from timetrial.runner.training.distributed import World
from timetrial.runner.training.early_stop import EarlyStop
from timetrial.runner.training.events import BlockStarted, EvalStarted, RunStarted, StepEnded

BLOCK = BlockStarted(first_epoch=1, epochs=1)
STEP = StepEnded(epoch=1, samples=1)


class TwoRanks(World):
    """The view of one rank on a world of two; the other rank contributes `other_reason`."""

    other_reason = 0

    def __init__(self):
        super().__init__(size=2)
        self.num_agreements = 0

    def all_reduce_max(self, number):
        self.num_agreements += 1
        return max(number, self.other_reason)

    def start_all_reduce_max(self, number):
        result = self.all_reduce_max(number)
        return lambda: result


def stop_signal(name=None):
    return SimpleNamespace(name=name)


def test_single_rank_decides_at_every_step():
    stop = stop_signal()
    early = EarlyStop(stop, World())
    early(BLOCK)
    for _ in range(5):
        early(STEP)
        assert not early.should_stop()
    stop.name = "SIGTERM"
    assert early.should_stop()


def test_several_ranks_agree_at_block_starts_and_every_sixteenth_step():
    """What they agree on at a step takes effect sixteen steps later, or at the next block."""
    world, stop = TwoRanks(), stop_signal()
    early = EarlyStop(stop, world)
    early(BLOCK)
    assert not early.should_stop()
    stop.name = "SIGUSR1"
    stops = []
    for step in range(1, 49):
        early(STEP)
        if early.should_stop():
            stops.append(step)
    assert stops == [32, 48]
    stop.name = None
    early(STEP)
    assert not early.should_stop()
    early(BLOCK)  # steps are counted on over blocks
    assert early.should_stop()
    early(STEP)
    early(EvalStarted(epoch=1))
    assert not early.should_stop()

    assert world.num_agreements == 6


def test_within_an_evaluation_a_rank_asks_itself_alone():
    world, stop = TwoRanks(), stop_signal()
    early = EarlyStop(stop, world)
    assert not early.is_requested()
    stop.name = "SIGTERM"
    assert early.is_requested()
    assert EarlyStop(stop_signal(), world, time_limit_seconds=0.0).is_requested()
    assert not world.num_agreements


def test_signal_to_another_rank_stops_this_rank():
    world = TwoRanks()
    early = EarlyStop(stop_signal(), world)
    early(BLOCK)
    assert not early.should_stop()
    world.other_reason = 1
    assert early.should_stop()
    error = early.error()
    assert isinstance(error, Stopped)
    assert str(error) == "Stopped by a signal to another rank; a checkpoint is written."


def test_signal_becomes_a_stopped_error():
    early = EarlyStop(stop_signal("SIGTERM"), World())
    assert early.should_stop()
    error = early.error()
    assert (type(error), error.exit_code) == (Stopped, Exit.STOPPED)
    assert str(error) == "Stopped by SIGTERM; a checkpoint is written."


def test_time_limit_counts_from_the_start_of_the_clock(monkeypatch):
    monkeypatch.setattr(early_stop, "now", lambda: 110.0)
    early = EarlyStop(stop_signal("SIGTERM"), World(), time_limit_seconds=10.0)
    early(RunStarted(time=100.0, params={}))
    early(STEP)
    assert early.should_stop()  # by the signal
    assert isinstance(early.error(), Stopped)
    monkeypatch.setattr(early_stop, "now", lambda: 110.1)
    assert early.should_stop()
    error = early.error()
    assert (type(error), error.exit_code) == (TimeLimit, Exit.TIME_LIMIT)
    assert "The limit of 10 s was reached before the target" in str(error)


@pytest.mark.parametrize(("seconds", "stops"), [(9.0, False), (11.0, True)])
def test_time_limit_without_a_signal(monkeypatch, seconds, stops):
    monkeypatch.setattr(early_stop, "now", lambda: seconds)
    early = EarlyStop(stop_signal(), World(), time_limit_seconds=10.0)
    early(RunStarted(time=0.0, params={}))
    assert early.should_stop() is stops
