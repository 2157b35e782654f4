"""RoIAlign by Triton's interpreter against torchvision, and its kernels compiled for GPUs."""

import pytest

from timetrial.workloads.maskrcnn import kernels

INTERPRETED = """
import sys

import torch
import torchvision
from timetrial.workloads.maskrcnn.kernels import roi_align

torch.manual_seed(1)

channels, size, count = map(int, sys.argv[1:])  # count: regions of an image
maps = [torch.randn(2, channels, 40 >> level, 72 >> level) for level in range(4)]
low = torch.rand(2, count, 2) * 150 - 20
regions = torch.cat([low, low + torch.rand(2, count, 2) * 130], 2)
regions[0, 0, 2:] = regions[0, 0, :2] + 0.5  # smaller than a cell
regions[1, 1] = torch.tensor([300.0, 200.0, 320.0, 230.0])  # outside
regions[1, 2] = float("nan")
levels = torch.randint(4, (2, count))
grad = torch.randn(2 * count, channels, size, size)
grad[count + 2] = 0
inputs, reference_inputs = ([x.clone().requires_grad_() for x in maps] for _ in range(2))
result = roi_align(inputs, regions, levels, size)
(result * grad).sum().backward()
image = torch.arange(2).repeat_interleave(count)
rois = torch.cat([image[:, None].float(), regions.flatten(0, 1)], 1).nan_to_num()
levels_pooled = [
    torchvision.ops.roi_align(x, rois, size, 1 / (4 << level), 2, aligned=False)
    for level, x in enumerate(reference_inputs)
]
expected = torch.stack(levels_pooled)[levels.flatten(), torch.arange(2 * count)]
(expected * grad).sum().backward()
finite = rois[:, 1:].sum(1) != 0
torch.testing.assert_close(result[finite], expected[finite], rtol=1e-4, atol=1e-5)
for x, reference in zip(inputs, reference_inputs):
    torch.testing.assert_close(x.grad, reference.grad, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize(("channels", "size", "count"), [("16", "7", "9"), ("8", "14", "4")])
def test_roi_align_equals_torchvision(interpret, channels, size, count):
    interpret(INTERPRETED, channels, size, count)


LARGE = """
import torch
from huge_tensors import HugeTensor, run_program
from sparse_tensors import sparse_maps
from timetrial.workloads.maskrcnn import kernels

side = 2**12
maps = [sparse_maps(1, 256, side >> level, side >> level) for level in range(4)]
maps[0][0, :, -1, -1] = torch.arange(256)
regions = torch.tensor([[[0.0, 0.0, 9.0, 9.0], [4.0 * (side - 1), 4.0 * (side - 1), 4.0 * side, 4.0 * side]]])
levels = torch.zeros(1, 2, dtype=torch.int32)
y = kernels.roi_align(maps, regions, levels, 1)
assert torch.equal(y[-1, :, 0, 0].float(), torch.arange(256.0))

dxs = {f"dx{level}_ptr": HugeTensor(torch.float16, x.numel()) for level, x in enumerate(maps)}
tiles = (side // 8) ** 2  # of the finest map
run_program(
    kernels._roi_align_backward, (tiles - 1, 1, 0), (2 * tiles, 2, 1), **dxs, height=side, width=side, images=1,
    regions_ptr=regions, levels_ptr=levels, dy_ptr=torch.zeros(2, 1, 1, 256), regions_per_image=2, C=256, FINEST=4,
    S=1, SAMPLES=2, TILE=8, BLOCK_R=2, BLOCK_P=64, BLOCK_C=128,
)
assert dxs["dx0_ptr"].last == maps[0].numel() - 1
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
def test_roi_align_compiles_for_gpus(compile_for_gpu, capability, dtype):
    constants = {"C": 256, "FINEST": 4, "S": 14, "SAMPLES": 2}
    constants |= {"TILE": 8, "BLOCK_R": 512, "BLOCK_P": 64, "BLOCK_C": 128}
    for kernel in (kernels._roi_align_forward, kernels._roi_align_backward):
        types = {name: f"*{dtype}" for name in kernel.arg_names if name.endswith("_ptr")}
        compile_for_gpu(kernel, capability, types | {"regions_ptr": "*fp32", "levels_ptr": "*i32"}, constants)
