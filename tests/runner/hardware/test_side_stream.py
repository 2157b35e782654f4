"""Items of a side stream; `tests/workloads/ncf/test_on_accelerator.py` has NCF's batches on a GPU."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch

from timetrial.runner.hardware import side_stream
from timetrial.runner.hardware.side_stream import SideStream


def test_items_keep_their_order():
    assert list(SideStream(torch.device("cpu")).make_ahead(iter([[1], [2], [3]]))) == [[1], [2], [3]]


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
