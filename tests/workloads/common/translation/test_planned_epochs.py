"""Plans of epochs: each made once, before its epoch begins, and the right one after a resume."""

import numpy as np
import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.workloads.common.translation.planned_epochs import PlannedEpochs


def test_each_epoch_is_planned_once_and_in_the_middle_of_the_one_before():
    planned = []

    def plan(epoch):
        planned.append(epoch)
        return [np.array([epoch, number]) for number in range(4)]

    epochs = PlannedEpochs(plan)
    for epoch in (1, 2, 3):
        batches = epochs.batches(epoch)
        taken = [next(batches) for _ in range(2)]
        epochs._thread.submit(int).result()  # what was submitted before it is done
        assert planned == list(range(1, epoch + 1))
        taken += batches
        assert np.array_equal(taken, plan(epoch))
        planned.pop()
        epochs._thread.submit(int).result()
        assert planned == list(range(1, epoch + 2))


def test_a_resumed_run_gets_the_epoch_that_it_asks_for():
    epochs = PlannedEpochs(lambda epoch: [np.full(2, epoch)] * 3)
    for epoch in (5, 6, 2):
        assert all((batch == epoch).all() for batch in epochs.batches(epoch))


def test_an_error_of_a_plan_is_raised_where_its_batches_are_asked_for():
    def plan(epoch):
        raise ConfigurationError("Too few pairs.")

    with pytest.raises(ConfigurationError, match="Too few pairs"):
        next(PlannedEpochs(plan).batches(1))
