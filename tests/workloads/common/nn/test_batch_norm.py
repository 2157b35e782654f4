"""Fused batch norm by Triton's interpreter against PyTorch in float64, and its kernels compiled for GPUs."""

import copy

import pytest
import torch
from torch import nn

from timetrial.workloads.common.nn import batch_norm
from timetrial.workloads.common.nn import batch_norm_kernels as kernels
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

torch.manual_seed(2)  # no value is so close to zero that only one precision masks it
# More parts than are added at a time.
batch_norm._SUM_PROGRAMS, batch_norm._MIN_TILES, batch_norm._BLOCK_PARTS = 8, 1, 4
shapes = ((2, 16, 20, 13), (2, 136, 3, 5), (2, 8, 1, 1))
forms = ((1, "plain"), *itertools.product((1, 2), ("branch", "shortcut", "both")))
for shape, (num_norms, kind), zeros in itertools.product(shapes, forms, (False, True)):
    norms = [nn.BatchNorm2d(shape[1], eps=0.01 * (i + 1), momentum=0.3 - 0.1 * i) for i in range(num_norms)]
    for norm in norms:
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
            tensor.normal_()
    x, shortcut = (torch.randn(shape) * 3 + 2 for _ in range(2))  # the shortcut is not channels-last
    x = x.contiguous(memory_format=torch.channels_last)
    if zeros:  # as recipes initialize the last norm of a block: many sums are exactly zero
        norms[0].weight.data.zero_(), norms[0].bias.data.zero_(), shortcut.relu_()
        norms[-1].bias.data.zero_()
    wide_norms = [copy.deepcopy(norm).double() for norm in norms]
    wide = [tensor.double().requires_grad_() for tensor in (x, shortcut)]
    mine = [tensor.requires_grad_() for tensor in (x, shortcut)]
    expected = network(wide_norms, *wide, kind)
    batch_norm.triton_available = lambda tensor: True
    results = network(norms, *mine, kind)
    batch_norm.triton_available = lambda tensor: False
    for result, other in zip(results, expected, strict=True):
        assert type(result.grad_fn).__name__ == "_BatchNormReLUBackward"
        assert result.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(result.double(), other, rtol=1e-4, atol=1e-4)
    grads = [torch.randn(shape) for _ in results]
    used = 1 if kind == "plain" else 2
    inputs, wide_inputs = ([*tensors[:used], *(p for norm in some for p in norm.parameters())]
                           for tensors, some in ((mine, norms), (wide, wide_norms)))
    gradients = torch.autograd.grad(results, inputs, grads)
    reference = torch.autograd.grad(expected, wide_inputs, [grad.double() for grad in grads])
    for one, other in zip(gradients, reference, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=2e-3)
    for norm, wide_norm in zip(norms, wide_norms):
        norm.eval(), wide_norm.eval()
        for name, buffer in norm.named_buffers():
            other = dict(wide_norm.named_buffers())[name].double()
            torch.testing.assert_close(buffer.double(), other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        batch_norm.triton_available = lambda tensor: True
        results = network(norms, *mine, kind)
        batch_norm.triton_available = lambda tensor: False
        for result, other in zip(results, network(wide_norms, *wide, kind), strict=True):
            assert result.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(result.double(), other, rtol=1e-4, atol=1e-4)

batch_norm.triton_available = lambda tensor: True
norm, x = nn.BatchNorm2d(8), torch.randn(2, 8, 3, 3).add(1000).contiguous(memory_format=torch.channels_last)
norm.running_mean.fill_(999.0)  # far from zero the variance stays exact
expected = nn.functional.batch_norm(x.double(), None, None, training=True).relu()
torch.testing.assert_close(batch_norm.batch_norm_relu(norm, x).double(), expected, rtol=1e-3, atol=1e-3)
"""


def test_equals_pytorch_in_float64(interpret):
    """Outputs, gradients and running statistics, with a residual, a normalized one and none, and an evaluation."""
    interpret(INTERPRETED)


LARGE = """
import torch
from sparse_tensors import sparse_maps, sparse_zeros
from timetrial.workloads.common.nn import batch_norm, batch_norm_kernels as kernels

x = sparse_maps(9, 128, 2**11, 2**10)
x[-1, :, -1, -1] = torch.arange(128) - 64
scale_shift, positive = torch.tensor([[2.0], [1.0]]).repeat(1, 128), sparse_zeros(x.numel() // 8, dtype=torch.uint8)
y = batch_norm._apply(x, None, scale_shift, None, positive)
assert torch.equal(y[-1, -64:, -1, -1].float(), 2 * torch.arange(64.0) + 1)
assert (positive[-8:] == 255).all()
norm, sums = torch.nn.BatchNorm2d(128), []
kernels.finish_forward = {(8,): lambda **arguments: sums.append(arguments["partial_sums_ptr"])}
batch_norm._measure(norm, x)
assert torch.equal(sums[0][-1, :, -64:], torch.stack([torch.arange(64.0), torch.arange(64.0) ** 2]))
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype, kind):
    maps = ("x_ptr", "y_ptr", "dy_ptr", "other_dy_ptr", "dz_ptr", "dx_ptr", "residual_ptr", "dresidual_ptr")
    types = dict.fromkeys(maps, f"*{dtype}") | {"positive_ptr": "*u8", "num_batches_ptr": "*i64"}
    types |= {"momentum": "fp32", "eps": "fp32"}
    constants = {"BLOCK_P": batch_norm._BLOCK_P, "BLOCK_C": batch_norm._BLOCK_C, "BLOCK_PARTS": batch_norm._BLOCK_PARTS}
    constants |= {"KIND": kind, "HAS_OTHER": kind > 0, "HAS_POSITIVE": kind > 0}
    names = ("sum_values", "finish_forward", "finish_backward", "apply_forward", "read_running_statistics")
    for kernel in (getattr(kernels, name) for name in (*names, "sum_gradients", "apply_backward")):
        pointers = {name: "*fp32" for name in kernel.arg_names if name.endswith("_ptr")}
        of_kernel = pointers | {name: type_ for name, type_ in types.items() if name in kernel.arg_names}
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


@pytest.mark.parametrize(
    "case",
    [
        "eval",
        "eval of the shortcut",
        "channels",
        "dtype",
        "shape",
        "momentum",
        "synchronized",
        "format",
        "one value",
        "pixels",
    ],
)
def test_what_the_kernels_cannot_do_is_left_to_pytorch(monkeypatch, case):
    monkeypatch.setattr(batch_norm, "triton_available", lambda tensor: True)
    norms, shape = [nn.BatchNorm2d(16), nn.BatchNorm2d(16)], (2, 16, 3, 4)
    x, shortcut = (torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(2))
    assert batch_norm._is_fusible(norms[0], x, shortcut, norms[1])
    match case:
        case "eval":
            norms = [norm.eval() for norm in norms]
            with torch.no_grad():
                assert batch_norm._is_fusible(norms[0], x, shortcut, norms[1])
        case "eval of the shortcut":
            norms[1].eval()
        case "channels":
            x, shortcut = (y[:, :12].contiguous(memory_format=torch.channels_last) for y in (x, shortcut))
        case "dtype":
            shortcut = shortcut.half()
        case "shape":
            shortcut = shortcut[:, :, :1, :1]
        case "momentum":
            norms[1].momentum = None
        case "synchronized":
            norms[0] = nn.SyncBatchNorm(16)
        case "format":
            x = x.contiguous()
        case "one value":
            x, shortcut = x[:1, :, :1, :1], shortcut[:1, :, :1, :1]
        case "pixels":  # more than 32 bits count, without their memory
            shape, format = (2**21, 16, 32, 32), torch.channels_last
            x, shortcut = (torch.empty(shape, device="meta").contiguous(memory_format=format) for _ in range(2))
            smaller = x[: 2**20]
            assert batch_norm._is_fusible(norms[0], smaller, smaller, norms[1])
    assert not batch_norm._is_fusible(norms[0], x, shortcut, norms[1])


def test_only_a_shortcut_whose_size_changes_is_projected():
    x, downsample = torch.randn(1, 2, 3, 3), nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4))
    assert project(None, x) == (x,)
    assert project(nn.Sequential(), x) == (x,)
    projected, norm = project(downsample, x)
    assert torch.equal(projected, downsample[0](x))
    assert norm is downsample[1]
