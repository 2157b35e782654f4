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


LARGE = """
import torch
from sparse_tensors import sparse_maps
from timetrial.workloads.maskrcnn import group_norm

x, factors, values = sparse_maps(3, 64, 2**12, 2**12), torch.randn(3, 3, 64), torch.arange(64.0)
assert x[0].numel() == group_norm._MAX_IMAGE
x[-1, :, -1, -1] = values
a, b, c = factors[-1]
y = group_norm._combined(x, factors, x)[-1, :, -1, -1]
torch.testing.assert_close(y.float(), (a + c) * values + b, rtol=1e-3, atol=1e-3)
torch.empty = torch.zeros  # the sums of programs that are not run
assert torch.equal(group_norm._sums(x)[-1], torch.stack([values, values**2]))
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize(("channels", "rows"), [(64, 64), (2048, 2)])
def test_group_norm_compiles_for_gpus(compile_for_gpu, capability, dtype, channels, rows):
    for kernel in (group_norm._sum_pixels, group_norm._combine):
        types = dict.fromkeys(("x_ptr", "dy_ptr", "out_ptr"), f"*{dtype}")
        types |= {"partial_sums_ptr": "*fp32", "factors_ptr": "*fp32"}
        types = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        for backward in (False, True):
            compile_for_gpu(kernel, capability, types, {"C": channels, "BLOCK_P": rows, "BACKWARD": backward})


def test_images_of_more_values_than_the_kernels_count_are_left_to_pytorch():
    """On a device without memory, where a kernel cannot start."""
    x = torch.empty(2, 2, 2**15, 2**15, device="meta")
    assert group_norm.GroupNorm(1, 2, device="meta")(x).shape == x.shape


def test_without_a_gpu_it_is_pytorchs():
    """In any number of channels."""
    layer, x = group_norm.GroupNorm(3, 6), torch.randn(2, 6, 4, 5)
    assert torch.equal(layer(x), F.group_norm(x, 3, layer.weight, layer.bias))
