"""Behavior of both beams that wide beams do not show; exhaustive searches are tested with each model."""

import torch

from timetrial.workloads.common.translation.beam_search import SharedBeam, SplitBeam
from timetrial.workloads.common.translation.top_words import TopWords

END = 1


def all_words(log_probabilities):
    rows = torch.tensor(log_probabilities)
    return TopWords(rows, torch.arange(rows.shape[1]).repeat(len(rows), 1))


def test_split_beam_keeps_beam_size_unfinished_hypotheses():
    beam = SplitBeam(1, 2, END, 0.6, 5, torch.device("cpu"))
    _, ids = beam.advance(all_words([[-4.0, -0.1, -3.0]] * 2), None)
    assert ids.tolist() == [2, 0]
    assert beam._log_probabilities.tolist() == [[-3.0, -4.0]]


def test_shared_beam_adds_no_coverage_after_the_end():
    score_inputs = []
    beam = SharedBeam(1, 1, END, lambda *x: (score_inputs.append(x), x[0])[1], 2, torch.device("cpu"))
    for end_log_probability in (-0.1, -5.0, -5.0):
        beam.advance(all_words([[-3.0, end_log_probability]]), torch.tensor([[0.75, 0.25]]))
    assert beam.best() == [[END]]
    torch.testing.assert_close(
        score_inputs[0], (torch.tensor([[-0.1]]), torch.tensor([[1.0]]), torch.tensor([[[0.75, 0.25]]]))
    )
