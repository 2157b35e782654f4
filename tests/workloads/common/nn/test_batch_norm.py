"""Fused batch norm by Triton's interpreter against PyTorch in float64, and its kernels compiled for GPUs."""

import copy

import pytest
import torch
from torch import nn

from timetrial.workloads.common.nn import batch_norm
from timetrial.workloads.common.nn.batch_norm import batch_norm_relu, project, residual_batch_norm_relu

INTERPRETED = """
import copy, itertools
import torch
from torch import nn
from timetrial.workloads.common.nn import batch_norm

def network(norms, x, shortcut, kind):
    '''All three forms; the sum is used twice, or once as a branch or shortcut.'''
    if kind == "plain":
        return (batch_norm.batch_norm_relu(norms[0], x),)
    branch, following = batch_norm.residual_batch_norm_relu(norms[0], x, shortcut, *norms[1:])
    return {"branch": (branch,), "shortcut": (following,)}.get(kind, (branch, following))

torch.manual_seed(1)
batch_norm._PROGRAMS, batch_norm._MIN_TILES, batch_norm._PARTS = 8, 1, 4  # more parts than are added at a time
shapes = ((2, 16, 20, 13), (2, 136, 3, 5), (2, 8, 1, 1))
for shape, num_norms, kind in itertools.product(shapes, (1, 2), ("plain", "branch", "shortcut", "both")):
    norms = [nn.BatchNorm2d(shape[1]) for _ in range(num_norms)]
    for norm in norms:
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
            tensor.normal_()
    wide_norms = copy.deepcopy(norms)
    x, shortcut = ((torch.randn(shape) * 3 + 2).contiguous(memory_format=torch.channels_last) for _ in range(2))
    wide = [tensor.double().requires_grad_() for tensor in (x, shortcut)]
    mine = [tensor.requires_grad_() for tensor in (x, shortcut)]
    wide_norms = [norm.double() for norm in wide_norms]
    expected = network(wide_norms, *wide, kind)
    batch_norm.triton_available = lambda tensor: True
    results = network(norms, *mine, kind)
    batch_norm.triton_available = lambda tensor: False
    for result, other in zip(results, expected, strict=True):
        assert type(result.grad_fn).__name__ == "_BatchNormReLUBackward"
        assert result.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(result.double(), other, rtol=1e-4, atol=1e-4)
    grads = [torch.randn(shape) for _ in results]
    used = (mine[:1], wide[:1], 1) if kind == "plain" else (mine, wide, num_norms)
    inputs, wide_inputs = ([*tensors, *(p for norm in all_norms[:used[2]] for p in norm.parameters())]
                           for tensors, all_norms in ((used[0], norms), (used[1], wide_norms)))
    gradients = torch.autograd.grad(results, inputs, grads)
    reference = torch.autograd.grad(expected, wide_inputs, [grad.double() for grad in grads])
    for one, other in zip(gradients, reference, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=2e-3)
    for norm, wide_norm in zip(norms, wide_norms):
        for name, buffer in norm.named_buffers():
            other = dict(wide_norm.named_buffers())[name].double()
            torch.testing.assert_close(buffer.double(), other, rtol=1e-5, atol=1e-5)
"""


def test_equals_pytorch_in_float64(interpret):
    """Outputs, gradients and running statistics, with a residual, a normalized one and none."""
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype, kind):
    maps = ("x", "y", "grad", "other_grad", "masked", "grad_x", "residual", "grad_residual")
    single = ("statistics", "factors", "weight", "bias", "running_mean", "running_var", "result", "of_norm")
    types = dict.fromkeys(maps, f"*{dtype}") | dict.fromkeys((*single, "sums"), "*fp32") | {"bits": "*u8"}
    types |= dict.fromkeys(("residual_statistics", "residual_factors", "residual_sums", "of_residual_norm"), "*fp32")
    types |= {"batches": "*i64", "momentum": "fp32", "eps": "fp32"}
    sizes = {"ROWS": batch_norm._ROWS, "CHANNELS": batch_norm._CHANNELS, "PARTS": batch_norm._PARTS}
    constants = sizes | {"KIND": kind, "HAS_OTHER": kind > 0}
    kernels = ("_sum_values", "_finish_forward", "_finish_backward", "_apply_forward", "_sum_gradients")
    for kernel in (getattr(batch_norm, name) for name in (*kernels, "_apply_backward")):
        of_kernel = {name: type_ for name, type_ in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, constants)


@pytest.mark.parametrize("training", [False, True])
def test_without_a_gpu_it_is_pytorchs(training):
    norms = [nn.BatchNorm2d(3).train(training) for _ in range(2)]
    references, x, shortcut = copy.deepcopy(norms), torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    assert torch.equal(batch_norm_relu(norms[0], x), references[0](x).relu())
    expected = (references[0](x) + references[1](shortcut)).relu()
    assert all(torch.equal(mine, expected) for mine in residual_batch_norm_relu(norms[0], x, shortcut, norms[1]))
    expected = (references[0](x) + shortcut).relu()
    assert all(torch.equal(mine, expected) for mine in residual_batch_norm_relu(norms[0], x, shortcut))
    for mine, other in zip(norms[0].buffers(), references[0].buffers(), strict=True):
        assert torch.equal(mine, other)


def test_only_a_shortcut_whose_size_changes_is_projected():
    x, downsample = torch.randn(1, 2, 3, 3), nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4))
    assert project(None, x) == (x,)
    assert project(nn.Sequential(), x) == (x,)
    projected, norm = project(downsample, x)
    assert torch.equal(projected, downsample[0](x))
    assert norm is downsample[1]
