"""Epochs whose first items are made during the one before."""

import contextlib
import itertools
from types import SimpleNamespace

import torch

from timetrial.runner.hardware import side_stream
from timetrial.runner.hardware.side_stream import SideStream
from timetrial.workloads.ncf.epochs_ahead import EpochsAhead


def test_first_items_of_an_epoch_are_made_during_the_one_before(monkeypatch):
    """What an epoch left goes on in the next; any other epoch begins anew."""
    begun = []

    def items_from(first):
        for epoch in itertools.count(first):
            begun.append(epoch)
            yield from (f"{epoch}.{number}" for number in range(2))

    side = SimpleNamespace(wait_stream=lambda _: None, record_event=lambda: None)
    monkeypatch.setattr(side_stream, "_second_stream", lambda _: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(wait_event=lambda _: None))
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    epochs = EpochsAhead(SideStream(torch.device("cuda", 0)), items_from)
    assert list(epochs.take(1, 2)) == ["1.0", "1.1"]
    assert begun == [1, 2]
    assert list(epochs.take(2, 2)) == ["2.0", "2.1"]
    assert begun == [1, 2, 3]
    assert next(epochs.take(3, 2)) == "3.0"
    assert list(epochs.take(3, 2)) == ["3.0", "3.1"]
    assert begun == [1, 2, 3, 3, 4]
