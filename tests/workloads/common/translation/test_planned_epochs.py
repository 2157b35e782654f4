"""Plans of epochs: made ahead in a thread, the right one after a resume, and gone with their data."""

import gc
import threading
import weakref

import numpy as np
import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.workloads.common.translation.planned_epochs import PlannedEpochs


class Planner:
    """Plans three batches of each epoch, and keeps the epochs and whether the caller's own thread planned them."""

    def __init__(self):
        self.planned, self.main = [], threading.get_ident()
        self.epochs = PlannedEpochs(self.plan)

    def plan(self, epoch):
        self.planned.append((epoch, threading.get_ident() == self.main))
        return [np.array([epoch, number]) for number in range(3)]

    def wait(self):
        """Wait until everything that was submitted is planned."""
        self.epochs._thread.submit(int).result()


def test_the_next_epoch_is_planned_in_a_thread_while_one_trains():
    planner = Planner()
    for epoch in (1, 2, 3):
        planner.wait()
        assert [number for number, _ in planner.planned] == list(range(1, epoch + 1))
        batches = planner.epochs.batches(epoch)
        first = next(batches)
        planner.wait()
        assert planner.planned[-1] == (epoch + 1, False)
        assert np.array_equal([first, *batches], [[epoch, 0], [epoch, 1], [epoch, 2]])
    assert len(planner.planned) == 4


def test_a_resumed_run_plans_the_epoch_that_it_asks_for_itself():
    planner = Planner()
    for epoch in (5, 6, 2):
        assert [batch[0] for batch in planner.epochs.batches(epoch)] == [epoch] * 3
    planner.wait()
    assert [epoch for epoch, by_caller in planner.planned if by_caller] == [5, 2]


def test_plans_do_not_keep_their_data():
    planner = Planner()
    planner.wait()
    reference = weakref.ref(planner)
    gc.disable()
    try:
        del planner
        assert reference() is None
    finally:
        gc.enable()


def test_an_error_of_a_plan_is_raised_where_its_batches_are_asked_for():
    class Failing(Planner):
        def plan(self, epoch):
            raise ConfigurationError("Too few pairs.")

    with pytest.raises(ConfigurationError, match="Too few pairs"):
        next(Failing().epochs.batches(1))
