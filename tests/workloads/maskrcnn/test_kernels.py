"""Alignment by Triton's interpreter, against torchvision."""

INTERPRETED = """
import torch
from torchvision.ops import roi_align
from timetrial.workloads.maskrcnn.kernels import align

torch.manual_seed(1)

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


def test_alignment_is_torchvisions(interpret):
    interpret(INTERPRETED)
