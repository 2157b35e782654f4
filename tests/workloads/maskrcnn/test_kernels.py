"""Suppression and alignment by Triton's interpreter, against plain loops and torchvision."""

INTERPRETED = """
import torch
from torchvision.ops import roi_align
from timetrial.workloads.maskrcnn.kernels import align, suppress

torch.manual_seed(1)

def overlap(a, b):
    wide = (torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0]) + 1).clamp(min=0)
    tall = (torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1]) + 1).clamp(min=0)
    area = lambda x: (x[2] - x[0] + 1) * (x[3] - x[1] + 1)
    return wide * tall / (area(a) + area(b) - wide * tall)

low = torch.rand(3, 37, 2) * 60
boxes = torch.cat([low, low + torch.rand(3, 37, 2) * 40], 2)
counts = torch.tensor([37, 20, 0], dtype=torch.int32)
found = suppress(boxes, counts, 0.3)
for group in range(3):
    kept = []
    for place in range(int(counts[group])):
        if all(overlap(boxes[group, place], boxes[group, other]) <= 0.3 for other in kept):
            kept.append(place)
    assert found[group].nonzero().flatten().tolist() == kept, group
assert 5 < found[0].sum() < 37

maps = [torch.randn(2, 16, edge, edge + 3, dtype=torch.float32) for edge in (20, 10)]
scales = torch.tensor([1 / 4, 1 / 8])
low = torch.rand(9, 2) * 70 - 8
regions = torch.cat([torch.randint(2, (9, 1)).float(), low, low + torch.rand(9, 2) * 50], 1)
regions[0, 3:] = regions[0, 1:3] + 0.5  # less than a cell
regions[1, 1:] = torch.tensor([300.0, 300.0, 320.0, 330.0])  # outside
levels = torch.randint(2, (9,), dtype=torch.int32)
given = torch.randn(9, 16, 7, 7)
ours, theirs = ([x.clone().requires_grad_() for x in maps] for _ in range(2))
found = align(ours, scales, regions, levels, 7)
(found * given).sum().backward()
parts = [roi_align(x, regions, 7, float(scale), 2, aligned=False) for x, scale in zip(theirs, scales)]
right = torch.stack(parts)[levels.long(), torch.arange(9)]
(right * given).sum().backward()
torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
for one, other in zip(ours, theirs):
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
"""


def test_suppression_and_alignment_are_what_they_should_be(interpret):
    interpret(INTERPRETED)
