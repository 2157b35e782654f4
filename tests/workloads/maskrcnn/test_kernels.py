"""RoIAlign by Triton's interpreter against torchvision, and its kernels compiled for GPUs."""

import pytest

from timetrial.workloads.maskrcnn import kernels

INTERPRETED = """
import sys

import torch
import torchvision
from timetrial.workloads.maskrcnn.kernels import roi_align

torch.manual_seed(1)

channels, size = int(sys.argv[1]), int(sys.argv[2])
maps = [torch.randn(2, channels, 40 >> level, 72 >> level) for level in range(4)]
low = torch.rand(2, 9, 2) * 150 - 20
regions = torch.cat([low, low + torch.rand(2, 9, 2) * 130], 2)
regions[0, 0, 2:] = regions[0, 0, :2] + 0.5  # smaller than a cell
regions[1, 1] = torch.tensor([300.0, 200.0, 320.0, 230.0])  # outside
regions[1, 2] = float("nan")
levels = torch.randint(4, (2, 9))
grad = torch.randn(18, channels, size, size)
grad[9 + 2] = 0
inputs, reference_inputs = ([x.clone().requires_grad_() for x in maps] for _ in range(2))
result = roi_align(inputs, regions, levels, size)
(result * grad).sum().backward()
image = torch.arange(2).repeat_interleave(9)
rois = torch.cat([image[:, None].float(), regions.flatten(0, 1)], 1).nan_to_num()
levels_pooled = [
    torchvision.ops.roi_align(x, rois, size, 1 / (4 << level), 2, aligned=False)
    for level, x in enumerate(reference_inputs)
]
expected = torch.stack(levels_pooled)[levels.flatten(), torch.arange(18)]
(expected * grad).sum().backward()
finite = rois[:, 1:].sum(1) != 0
torch.testing.assert_close(result[finite], expected[finite], rtol=1e-4, atol=1e-5)
for x, reference in zip(inputs, reference_inputs):
    torch.testing.assert_close(x.grad, reference.grad, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize(("channels", "size"), [("16", "7"), ("8", "14")])
def test_roi_align_equals_torchvision(interpret, channels, size):
    interpret(INTERPRETED, channels, size)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
def test_roi_align_compiles_for_gpus(compile_for_gpu, capability, dtype):
    constants = {"C": 256, "FINEST": 4, "S": 14, "SAMPLES": 2}
    constants |= {"TILE": 8, "REGIONS": 512, "PIXELS": 64, "CHANNELS": 128}
    for kernel in (kernels._roi_align_forward, kernels._roi_align_backward):
        types = {name: f"*{dtype}" for name in kernel.arg_names if name[:3] in ("map", "gra", "out")}
        compile_for_gpu(kernel, capability, types | {"regions": "*fp32", "levels": "*i32"}, constants)
