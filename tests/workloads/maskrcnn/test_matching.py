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


@pytest.mark.integration
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize(("force_best", "write"), [(True, False), (True, True), (False, True)])
def test_kernel_compiles_for_gpus(compile_for_gpu, capability, force_best, write):
    types = dict.fromkeys(("regions", "boxes"), "*fp32") | dict.fromkeys(("box_counts", "best_of_boxes"), "*i32")
    types |= {"valid": "*i1", "matches": "*i64"}
    constants = {
        "foreground_iou": 0.7, "background_iou": 0.3, "negative": -1, "ignored": -2, "REGIONS": matching._REGIONS,
        "BOXES": matching._BOXES, "FORCE_BEST": force_best, "WRITE": write,
    }  # fmt: skip
    compile_for_gpu(matching._match, capability, types, constants)
