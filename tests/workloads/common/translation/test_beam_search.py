"""What wide beams do not show; against all that could be said, searches are tested with each model."""

import torch

from timetrial.workloads.common.translation.beam_search import EndedGoApart, EndedStay

END = 1


def test_an_end_takes_no_place_from_what_goes_on():
    """Among the 2 K best are K that go on, whatever ends."""
    beams = EndedGoApart(1, 2, END, 0.6, 5, torch.device("cpu"))
    _, ids = beams.advance(torch.tensor([[-4.0, -0.1, -3.0]] * 2), None)
    assert ids.tolist() == [2, 0]
    assert beams._sums.tolist() == [[-3.0, -4.0]]


def test_what_has_ended_looks_at_nothing_more():
    ranked = []
    beams = EndedStay(1, 1, END, lambda *x: (ranked.append(x), x[0])[1], 2, torch.device("cpu"))
    for ends in (-0.1, -5.0, -5.0):
        beams.advance(torch.tensor([[-3.0, ends]]), torch.tensor([[0.75, 0.25]]))
    assert beams.best() == [[END]]
    torch.testing.assert_close(
        ranked[0], (torch.tensor([[-0.1]]), torch.tensor([[1.0]]), torch.tensor([[[0.75, 0.25]]]))
    )
