"""Non-maximum suppression by Triton's interpreter and by torchvision against plain loops, for both kinds of widths."""

import pytest
import torch

from timetrial.workloads.common.detection.nms import batched_nms

CASES = """
import torch

def iou(a, b, offset):
    width = (torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0]) + offset).clamp(min=0)
    height = (torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1]) + offset).clamp(min=0)
    area = lambda x: (x[2] - x[0] + offset) * (x[3] - x[1] + offset)
    return width * height / (area(a) + area(b) - width * height)

def check(batched_nms):
    torch.manual_seed(1)
    low = torch.rand(3, 37, 2) * 60
    boxes = torch.cat([low, low + torch.rand(3, 37, 2) * 40], 2)
    for offset, counts in ((0.0, [37, 20, 0]), (1.0, [37, 1, 30]), (0.0, None)):
        result = batched_nms(boxes, 0.3, counts and torch.tensor(counts), pixel_offset=offset)
        for group in range(3):
            kept = []
            for index in range(counts[group] if counts else 37):
                if all(iou(boxes[group, index], boxes[group, better], offset) <= 0.3 for better in kept):
                    kept.append(index)
            assert result[group].nonzero().flatten().tolist() == kept, (offset, group)
        assert 5 < result[0].sum() < 37
"""
INTERPRETED = """
from timetrial.workloads.common.detection import nms
nms.triton_available = lambda boxes: True
check(nms.batched_nms)
"""


def test_kernel_keeps_the_same_boxes_as_plain_loops(interpret):
    interpret(CASES + INTERPRETED)


def test_cpu_keeps_the_same_boxes_as_plain_loops():
    namespace = {}
    exec(CASES, namespace)  # the program that the interpreter runs
    namespace["check"](batched_nms)


@pytest.mark.parametrize("count", [0, 1])
def test_handles_groups_of_zero_and_one_box(count):
    assert batched_nms(torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), 0.5, torch.tensor([count])).tolist() == [[count == 1]]


LARGE = """
import torch
from sparse_tensors import sparse_zeros
from timetrial.workloads.common.detection import nms

boxes = sparse_zeros(2**25 + 1, 16, 4, dtype=torch.float32)
boxes[-1] = torch.tensor([0.0, 0.0, 1.0, 1.0])
boxes[-1, ::2] += 2.0
counts, kept = torch.full((len(boxes),), 16, dtype=torch.int32), sparse_zeros(*boxes.shape[:2], dtype=torch.int8)
nms._nms[(len(boxes),)](
    boxes_ptr=boxes, counts_ptr=counts, kept_ptr=kept, boxes_per_group=16, iou_threshold=0.5, EDGE=0.0, BLOCK=16
)
assert kept[-1].tolist() == [1, 1] + [0] * 14
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)
