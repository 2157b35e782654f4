"""Group norm by Triton's interpreter against PyTorch in float64, and its kernels compiled for GPUs."""

import pytest
import torch
from torch.nn import functional as F

from timetrial.workloads.maskrcnn import group_norm

INTERPRETED = """
import torch
from torch.nn import functional as F
from timetrial.workloads.maskrcnn.group_norm import _GroupNorm

torch.manual_seed(1)
for shape, groups in (((3, 16, 20, 13), 4), ((2, 64, 9, 200), 32), ((1, 8, 1, 1), 2)):
    x = (torch.randn(shape) * 3 + 2).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = torch.randn(shape[1], requires_grad=True), torch.randn(shape[1], requires_grad=True)
    grad = torch.randn(shape)
    result = _GroupNorm.apply(x, weight, bias, groups, 1e-5)
    assert result.is_contiguous(memory_format=torch.channels_last)
    gradients = torch.autograd.grad(result, (x, weight, bias), grad)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    expected = F.group_norm(wide[0], groups, wide[1], wide[2], 1e-5)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)
    for mine, reference in zip(gradients, torch.autograd.grad(expected, wide, grad.double())):
        torch.testing.assert_close(mine.double(), reference, rtol=1e-4, atol=1e-4)
"""


def test_group_norm_equals_pytorch_in_float64(interpret):
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize(("channels", "rows"), [(64, 64), (2048, 2)])
def test_group_norm_compiles_for_gpus(compile_for_gpu, capability, dtype, channels, rows):
    for kernel in (group_norm._sum_pixels, group_norm._combine):
        types = dict.fromkeys(("x", "grad", "out"), f"*{dtype}") | {"sums": "*fp32", "factors": "*fp32"}
        types = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        for backward in (False, True):
            compile_for_gpu(kernel, capability, types, {"C": channels, "ROWS": rows, "BACKWARD": backward})


def test_without_a_gpu_it_is_pytorchs():
    """In any number of channels."""
    layer, x = group_norm.GroupNorm(3, 6), torch.randn(2, 6, 4, 5)
    assert torch.equal(layer(x), F.group_norm(x, 3, layer.weight, layer.bias))
