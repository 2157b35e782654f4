"""Positions of a schedule: in epochs they follow the data, in samples they do not."""

from types import SimpleNamespace

import pytest

from timetrial.workloads.common import schedule


def settings(epochs, samples):
    return SimpleNamespace(decay_epochs=epochs, decay_samples=samples)


@pytest.mark.parametrize("size", [640, 3200])
def test_epochs_scale_with_the_data_and_samples_do_not(size):
    data = SimpleNamespace(train_size=size, global_batch_size=64)
    assert schedule.updates(settings(2.5, None), "decay", data) == 2.5 * size / 64
    assert schedule.updates(settings([1, 2], None), "decay", data) == [size / 64, 2 * size / 64]
    assert schedule.updates(settings(None, 1280), "decay", data) == 20
    assert schedule.updates(settings(None, [640, 1280]), "decay", data) == [10, 20]


@pytest.mark.parametrize(
    ("epochs", "samples", "message"),
    [(1.0, 64, "set either"), (None, None, "set either"), (0.0, None, "above 0"), (None, [64, -1], "above 0")],
)
def test_exactly_one_unit_above_zero_is_wanted(epochs, samples, message):
    with pytest.raises(ValueError, match=message):
        schedule.check(settings(epochs, samples), "decay")
