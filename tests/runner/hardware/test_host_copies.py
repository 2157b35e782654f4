"""Copies to the host, on the CPU."""

import torch

from timetrial.runner.hardware.host_copies import host_copies


def test_host_copies_are_yielded_once_the_next_has_been_submitted():
    submitted = []

    def results():
        for number in range(3):
            submitted.append(number)
            yield [torch.full((2,), number), number]

    assert [(copy[0].tolist(), copy[1], len(submitted)) for copy in host_copies(results())] == [
        ([0, 0], 0, 2),
        ([1, 1], 1, 3),
        ([2, 2], 2, 3),
    ]
    assert list(host_copies([])) == []
