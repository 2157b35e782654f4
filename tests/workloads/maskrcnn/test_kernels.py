"""RoIAlign by Triton's interpreter against torchvision."""

INTERPRETED = """
import torch
import torchvision
from timetrial.workloads.maskrcnn.kernels import roi_align

torch.manual_seed(1)

maps = [torch.randn(2, 16, edge, edge + 3, dtype=torch.float32) for edge in (20, 10)]
scales = torch.tensor([1 / 4, 1 / 8])
low = torch.rand(9, 2) * 70 - 8
regions = torch.cat([torch.randint(2, (9, 1)).float(), low, low + torch.rand(9, 2) * 50], 1)
regions[0, 3:] = regions[0, 1:3] + 0.5  # smaller than a cell
regions[1, 1:] = torch.tensor([300.0, 300.0, 320.0, 330.0])  # outside
levels = torch.randint(2, (9,), dtype=torch.int32)
grad = torch.randn(9, 16, 7, 7)
inputs, reference_inputs = ([x.clone().requires_grad_() for x in maps] for _ in range(2))
result = roi_align(inputs, scales, regions, levels, 7)
(result * grad).sum().backward()
levels_pooled = [
    torchvision.ops.roi_align(x, regions, 7, float(scale), 2, aligned=False)
    for x, scale in zip(reference_inputs, scales)
]
expected = torch.stack(levels_pooled)[levels.long(), torch.arange(9)]
(expected * grad).sum().backward()
torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
for x, reference in zip(inputs, reference_inputs):
    torch.testing.assert_close(x.grad, reference.grad, rtol=1e-4, atol=1e-4)
"""


def test_roi_align_equals_torchvision(interpret):
    interpret(INTERPRETED)
