"""The matching kernel by Triton's interpreter against PyTorch's operations, and compiled for GPUs."""

import pytest

from timetrial.workloads.maskrcnn import matching

INTERPRETED = """
import torch
from timetrial.workloads.maskrcnn.matching import IGNORED, NEGATIVE, match, match_by_kernel

torch.manual_seed(1)
def draw(*shape):
    corner = (torch.rand(*shape, 2) * 90).round()
    return torch.cat([corner, corner + (torch.rand(*shape, 2) * 40).round()], -1)

for images, regions, boxes in ((3, 300, 37), (2, 128, 16), (1, 5, 1)):
    truth, valid = draw(images, boxes), torch.rand(images, boxes) < 0.6
    valid[0] = False
    valid[-1, 0] = True
    for given in (draw(1, regions), torch.cat([draw(images, regions - boxes), truth + 1], 1)):
        for force_best in (False, True):
            ious = {"foreground_iou": 0.6, "background_iou": 0.3}
            expected = match(given, truth, valid, **ious, force_best=force_best)
            assert torch.equal(match_by_kernel(given, truth, valid, *ious.values(), force_best), expected)
            assert len(given) != images or regions < 100 or (expected == IGNORED).any() and (expected > 0).any()
    assert (expected[0] == NEGATIVE).all() or images == 1
"""


def test_kernel_equals_pytorch(interpret):
    """Ties are common, as corners are whole numbers; the first image has no box."""
    interpret(INTERPRETED)


LARGE = """
import torch
from sparse_tensors import sparse_zeros
from timetrial.workloads.maskrcnn.matching import match_by_kernel

regions, boxes = sparse_zeros(5, 2**27, 4, dtype=torch.float32), torch.rand(5, 20, 4).cumsum(2)
regions[-1, -20:] = boxes[-1]
matches = match_by_kernel(regions, boxes, torch.ones(5, 20, dtype=torch.bool), 0.9, 0.1, True)
assert torch.equal(matches[-1, -20:], torch.arange(20))
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize(("force_best", "write"), [(True, False), (True, True), (False, True)])
def test_kernel_compiles_for_gpus(compile_for_gpu, capability, force_best, write):
    types = dict.fromkeys(("regions_ptr", "boxes_ptr"), "*fp32")
    types |= dict.fromkeys(("box_counts_ptr", "best_of_boxes_ptr"), "*i32")
    types |= {"valid_ptr": "*i1", "matches_ptr": "*i64"}
    constants = {
        "FOREGROUND_IOU": 0.7, "BACKGROUND_IOU": 0.3, "NEGATIVE": -1, "IGNORED": -2, "BLOCK_R": matching._BLOCK_R,
        "BLOCK_M": matching._BLOCK_M, "FORCE_BEST": force_best, "WRITE": write,
    }  # fmt: skip
    compile_for_gpu(matching._match, capability, types, constants)
