"""Operations on boxes on a GPU."""

import pytest
import torch

from timetrial.workloads.common.detection.nms import batched_nms

pytestmark = pytest.mark.gpu


def test_nms_equals_that_of_the_cpu(random_boxes):
    device = torch.accelerator.current_accelerator()
    boxes = torch.stack([random_boxes(2000), random_boxes(1999)[torch.arange(2000) % 1999]])
    counts = torch.tensor([2000, 1500])
    for overlap in (0.3, 0.7):
        actual = batched_nms(boxes.to(device), overlap, counts.to(device), pixel_offset=1.0).cpu()
        expected = batched_nms(boxes, overlap, counts, pixel_offset=1.0)
        assert (actual != expected).sum() <= 2  # overlaps at the threshold may round either way
