"""Items of a side stream; `tests/workloads/ncf/test_on_accelerator.py` has NCF's batches on a GPU."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch

from timetrial.runner.hardware import side_stream
from timetrial.runner.hardware.side_stream import EpochsAhead, SideStream


def test_items_keep_their_order():
    assert list(SideStream(torch.device("cpu")).make_ahead(iter([[1], [2], [3]]))) == [[1], [2], [3]]


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


FIRST_USE = ["side waits", "make 0", "wait for 0", "side waits", "make 1", "use 0", "wait for 1"]


@pytest.mark.parametrize(
    ("consumed", "calls"),
    [(0, []), (1, FIRST_USE), (9, [*FIRST_USE, "side waits", "use 1", "wait for the end"])],
)
def test_streams_wait_for_each_other(monkeypatch, consumed, calls):
    """Before an item is made, the side stream waits for the work so far; before it is used, the current stream does.

    It also waits for an item that was made but is not asked for.
    """
    log = []
    side = SimpleNamespace(wait_stream=lambda _: log.append("side waits"))
    side.record_event = lambda: log[-1].replace("make", "wait for").replace("side waits", "wait for the end")
    current = SimpleNamespace(wait_event=log.append)
    monkeypatch.setattr(side_stream, "_second_stream", lambda _: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)

    def items():
        for number in range(2):
            log.append(f"make {number}")
            yield number

    stream = SideStream(torch.device("cuda", 0))
    log.extend(f"use {number}" for number in itertools.islice(stream.make_ahead(items()), consumed))
    assert log == calls
