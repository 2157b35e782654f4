"""Items of a side stream on the CPU; `test_on_accelerator.py` has NCF's batches on a GPU."""

import torch

from timetrial.runner.hardware.side_stream import SideStream


def test_items_keep_their_order():
    assert list(SideStream(torch.device("cpu")).make_ahead(iter([[1], [2], [3]]))) == [[1], [2], [3]]
