"""GPT's kernels by Triton's interpreter against PyTorch in float64, and compiled for GPUs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timetrial.workloads.gpt import kernels

INTERPRETED = """
import copy, itertools
import torch
from torch import nn
from timetrial.workloads.gpt import kernels

torch.manual_seed(1)
kernels._NORM_PROGRAMS, kernels._PROGRAMS, kernels._NORM_TILE = 3, 6, 256  # several rows and tiles of a program


def check(function, layer, tensors, name, make_grad=torch.randn):
    '''Compare results and gradients with those in float64, which PyTorch's operations compute.'''
    wide_layer = copy.deepcopy(layer).double()
    wide = [None if x is None else x.detach().double().requires_grad_() for x in tensors]
    expected = function(wide_layer, *wide)
    kernels.triton_available = lambda tensor: True
    results = function(layer, *tensors)
    kernels.triton_available = lambda tensor: False
    assert name in type(results[-1].grad_fn).__name__
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), other, rtol=1e-4, atol=1e-5)
    grads = [make_grad(other.shape) for other in expected]
    every = [*range(len(results))]
    for used in (every, *([number] for number in every)):  # a result may have no gradient of its own
        inputs, wide_inputs = ([*(x for x in some if x is not None), *of.parameters()]
                               for some, of in ((tensors, layer), (wide, wide_layer)))
        mine = torch.autograd.grad([results[i] for i in used], inputs, [grads[i] for i in used],
                                   retain_graph=True, allow_unused=True)
        reference = torch.autograd.grad([expected[i] for i in used], wide_inputs, [grads[i].double() for i in used],
                                        retain_graph=True, allow_unused=True)
        for one, other in zip(mine, reference, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def transposed(shape):  # gradients that are not contiguous
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT


def expanded(shape):  # a gradient of a mean has strides of 0
    return torch.randn(1).expand(shape)


for bias, width, (has_branch, has_bias) in itertools.product(
        (True, False), (24, 128), itertools.product((True, False), repeat=2)):
    norm = nn.LayerNorm(width, bias=bias)
    for parameter in norm.parameters():
        parameter.data.normal_()
    x, branch, branch_bias = (
        torch.randn(shape).mul(3).add(1).requires_grad_() for shape in ((2, 13, width), (2, 13, width), (width,)))
    inputs = [x, branch if has_branch else None, branch_bias if has_bias else None]
    for make_grad in (torch.randn, transposed):
        check(kernels.add_layer_norm, norm, inputs, "AddLayerNorm", make_grad)
x, branch = torch.randn(2, 13, 24).requires_grad_(), torch.randn(2, 24, 13).mT.requires_grad_()
check(kernels.add_layer_norm, nn.LayerNorm(24), (x, branch, None), "AddLayerNorm")

for bias, shape in itertools.product((True, False), ((2, 45, 16), (1, 3, 16))):
    x = torch.randn(shape).mul(2).requires_grad_()
    for make_grad in (torch.randn, transposed, expanded):
        gelu = nn.Linear(16, 256, bias=bias)
        check(lambda layer, x: [kernels.linear_gelu(layer, x)], gelu, [x], "GELU", make_grad)
        heads = nn.Linear(16, 3 * 128, bias=bias)
        check(lambda layer, x: kernels.linear_heads(layer, x, 4), heads, [x], "Split", make_grad)

    def mixed(layer, x):  # gradients of unlike formats, of which the first has strides of 0
        queries, keys, values = kernels.linear_heads(layer, x, 4)
        return [queries.sum() + (keys * values).mul(0.1).sum() + keys.mT.contiguous().square().sum()]

    def attend(layer, x):
        return [nn.functional.scaled_dot_product_attention(*kernels.linear_heads(layer, x, 4), is_causal=True)]

    for function in (mixed, attend):
        check(function, heads, [x], "")
"""


def test_equal_pytorch_in_float64(interpret):
    """Results and gradients, with and without biases, branches and full tiles."""
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("flag", [False, True])
def test_compile_for_gpus(compile_for_gpu, capability, dtype, flag):
    tensors = ("x", "branch", "total", "normalized", "grad", "other", "result", "y", "queries", "keys", "values")
    types = dict.fromkeys((*tensors, "packed"), f"*{dtype}") | {"eps": "fp32"}
    types |= dict.fromkeys(("moments", "weight", "bias", "branch_bias", "sums"), "*fp32")
    constants = dict.fromkeys(("HAS_BRANCH", "HAS_BRANCH_BIAS", "HAS_BIAS", "HAS_OTHER"), flag)
    constants |= {"ROWS": 4, "BLOCK": 1024, "COLUMNS": kernels._COLUMNS}
    for name in ("_norm_forward", "_norm_backward", "_gelu_forward", "_gelu_backward", "_pack_heads"):
        kernel = getattr(kernels, name)
        compile_for_gpu(
            kernel, capability, {key: kind for key, kind in types.items() if key in kernel.arg_names}, constants
        )


def test_without_a_gpu_they_are_pytorchs():
    norm, x, branch = nn.LayerNorm(8), torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    total, normalized = kernels.add_layer_norm(norm, x, branch)
    assert torch.equal(total, x + branch)
    assert torch.equal(normalized, norm(x + branch))
    assert torch.equal(kernels.add_layer_norm(norm, x, branch, norm.bias + 1)[0], x + (branch + 1))
    assert torch.equal(kernels.add_layer_norm(norm, x)[1], norm(x))
    linear = nn.Linear(8, 24)
    assert torch.equal(kernels.linear_gelu(linear, x), F.gelu(linear(x), approximate="tanh"))
    queries, keys, values = kernels.linear_heads(linear, x, 2)
    assert torch.equal(torch.stack([queries, keys, values]), linear(x).view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4))
