"""Suppression by Triton's interpreter and by torchvision, against plain loops, with widths of both kinds."""

import pytest
import torch

from timetrial.workloads.common.detection.nms import suppress

CASES = """
import torch

def overlap(a, b, edge):
    wide = (torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0]) + edge).clamp(min=0)
    tall = (torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1]) + edge).clamp(min=0)
    area = lambda x: (x[2] - x[0] + edge) * (x[3] - x[1] + edge)
    return wide * tall / (area(a) + area(b) - wide * tall)

def check(suppress):
    torch.manual_seed(1)
    low = torch.rand(3, 37, 2) * 60
    boxes = torch.cat([low, low + torch.rand(3, 37, 2) * 40], 2)
    for edge, counts in ((0.0, [37, 20, 0]), (1.0, [37, 1, 30]), (0.0, None)):
        found = suppress(boxes, 0.3, counts and torch.tensor(counts), edge=edge)
        for group in range(3):
            kept = []
            for place in range(counts[group] if counts else 37):
                if all(overlap(boxes[group, place], boxes[group, other], edge) <= 0.3 for other in kept):
                    kept.append(place)
            assert found[group].nonzero().flatten().tolist() == kept, (edge, group)
        assert 5 < found[0].sum() < 37
"""
INTERPRETED = """
from timetrial.workloads.common.detection import nms as suppression
suppression.available = lambda boxes: True
check(suppression.suppress)
"""


def test_the_kernel_keeps_what_plain_loops_keep(interpret):
    interpret(CASES + INTERPRETED)


def test_the_processor_keeps_what_plain_loops_keep():
    found = {}
    exec(CASES, found)  # the same text as the interpreter's
    found["check"](suppress)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_one_are_no_trouble(count):
    assert suppress(torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), 0.5, torch.tensor([count])).tolist() == [[count == 1]]
