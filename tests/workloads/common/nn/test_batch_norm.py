"""Fused batch norm by Triton's interpreter against PyTorch in float64, and its kernels compiled for GPUs."""

import copy

import pytest
import torch
from torch import nn

from timetrial.workloads.common.nn import batch_norm
from timetrial.workloads.common.nn.batch_norm import batch_norm_relu

INTERPRETED = """
import copy, itertools
import torch
from torch import nn
from timetrial.workloads.common.nn import batch_norm

torch.manual_seed(1)
shapes = ((3, 16, 20, 13), (2, 130, 7, 5), (2, 8, 1, 1))  # the first has more parts than are summed at a time
for shape, relu, with_residual in itertools.product(shapes, (True, False), (True, False)):
    norm = nn.BatchNorm2d(shape[1])
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.normal_()
    wide_norm = copy.deepcopy(norm).double()
    x = (torch.randn(shape) * 3 + 2).contiguous(memory_format=torch.channels_last).requires_grad_()
    residual = torch.randn(shape).requires_grad_() if with_residual else None
    given = [x, norm.weight, norm.bias, *([residual] if with_residual else [])]
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, *([residual] if with_residual else []))]
    expected = batch_norm.batch_norm_relu(wide_norm, wide[0], *wide[1:], relu=relu)
    batch_norm.triton_available = lambda tensor: True
    result = batch_norm.batch_norm_relu(norm, x, residual, relu=relu)
    batch_norm.triton_available = lambda tensor: False
    assert type(result.grad_fn).__name__ == "_BatchNormBackward"
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn(shape)
    mine = torch.autograd.grad(result, given, grad)
    reference = torch.autograd.grad(expected, [wide[0], wide_norm.weight, wide_norm.bias, *wide[1:]], grad.double())
    for one, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=2e-3)
    for name, buffer in norm.named_buffers():
        other = dict(wide_norm.named_buffers())[name].double()
        torch.testing.assert_close(buffer.double(), other, rtol=1e-5, atol=1e-5)
"""


def test_equals_pytorch_in_float64(interpret):
    """Outputs, gradients and running statistics, with and without residual and ReLU."""
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("fused", [False, True])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype, fused):
    half = dict.fromkeys(("x", "y", "grad", "grad_x", "residual", "grad_residual"), f"*{dtype}")
    single = ("sums", "statistics", "factors", "weight", "bias", "running_mean", "running_var", "grad_weight")
    types = (
        half | dict.fromkeys((*single, "grad_bias"), "*fp32") | {"batches": "*i64", "momentum": "fp32", "eps": "fp32"}
    )
    constants = {"ROWS": batch_norm._ROWS, "CHANNELS": batch_norm._CHANNELS, "PARTS": batch_norm._PARTS}
    constants |= dict.fromkeys(("RESIDUAL", "RELU", "BACKWARD"), fused)
    kernels = ("_sum_pixels", "_finish_forward", "_finish_backward", "_apply_forward", "_apply_backward")
    for kernel in (getattr(batch_norm, name) for name in kernels):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, constants)


@pytest.mark.parametrize("training", [False, True])
def test_without_a_gpu_it_is_pytorchs(training):
    norm, x, residual = nn.BatchNorm2d(3).train(training), torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    reference = copy.deepcopy(norm)
    assert torch.equal(batch_norm_relu(norm, x, residual), (reference(x) + residual).relu())
    assert torch.equal(batch_norm_relu(norm, x, relu=False), reference(x))
    for mine, other in zip(norm.buffers(), reference.buffers(), strict=True):
        assert torch.equal(mine, other)
