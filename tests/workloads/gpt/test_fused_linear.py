"""Bias + GELU and the QKV split by Triton's interpreter against PyTorch in float64, and compiled for GPUs."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timetrial.workloads.gpt import fused_linear

INTERPRETED = """
import functools, itertools, sys
import torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from kernel_checks import check, expanded, transposed
from timetrial.workloads.gpt import fused_linear

torch.manual_seed(1)
fused_linear._PROGRAMS_PER_MULTIPROCESSOR = 6  # several rows and tiles of a program
check = functools.partial(check, fused_linear)
for bias, shape in itertools.product((True, False), ((2, 45, 16), (1, 3, 16))):
    x = torch.randn(shape).mul(2).requires_grad_()
    for make_grad in (torch.randn, transposed, expanded):
        gelu = nn.Linear(16, 256, bias=bias)
        check(lambda layer, x: [fused_linear.linear_gelu(layer, x)], gelu, [x], "GELU", make_grad)
        heads = nn.Linear(16, 3 * 128, bias=bias)
        check(lambda layer, x: fused_linear.linear_heads(layer, x, 4), heads, [x], "Split", make_grad)

    def mixed(layer, x):  # gradients of unlike formats, of which the first has strides of 0
        queries, keys, values = fused_linear.linear_heads(layer, x, 4)
        return [queries.sum() + (keys * values).mul(0.1).sum() + keys.mT.contiguous().square().sum()]

    def attend(layer, x):
        heads = fused_linear.linear_heads(layer, x, 4)
        return [nn.functional.scaled_dot_product_attention(*heads, is_causal=True)]

    for function in (mixed, attend):
        check(function, heads, [x], "")
"""


def test_equal_pytorch_in_float64(interpret):
    """Results and gradients, with and without biases and full tiles."""
    interpret(INTERPRETED, str(Path(__file__).parent))


LARGE = """
import sys
from types import SimpleNamespace
import torch
from torch.nn import functional as F
sys.path.insert(0, sys.argv[1])
from kernel_checks import empty_but_end
from timetrial.runner.hardware import devices
from timetrial.workloads.gpt import fused_linear

devices.num_multiprocessors = lambda device: 1 << 12
x, dy = empty_but_end(2**24 + 2**15, 128), empty_but_end(2**24 + 2**15, 128)
wide = x[:, -8:].float().requires_grad_()
expected = F.gelu(wide, approximate="tanh")
expected.backward(dy[:, -8:].float())
x.requires_grad_()
y = fused_linear._GELU.apply(x, None)
torch.testing.assert_close(y[:, -8:].float(), expected, rtol=1e-2, atol=1e-2)
(dx,) = torch.autograd.grad(y, x, dy)
torch.testing.assert_close(dx[:, -8:].float(), wide.grad, rtol=1e-2, atol=1e-2)

strides = (0, 2**30, 64, 1)  # as of 2^24 tokens
dq, dk, dv = (torch.empty(3 * 2**30 + 128, dtype=torch.float16).as_strided((1, 4, 2, 64), strides) for _ in range(3))
dv.copy_(torch.randn(dv.shape))
dx, _, _ = fused_linear._SplitHeads.backward(SimpleNamespace(has_bias=False), dq, dk, dv)
assert torch.equal(dx[..., -128:], dv.transpose(1, 2).flatten(2)[..., -128:])
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE, str(Path(__file__).parent))


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
def test_compile_for_gpus(compile_for_gpu, capability, dtype):
    types = dict.fromkeys(("x_ptr", "y_ptr", "dy_ptr", "dx_ptr", "dq_ptr", "dk_ptr", "dv_ptr"), f"*{dtype}")
    types |= {"sums_ptr": "*fp32"}
    constants = {"BLOCK": fused_linear._BLOCK, "BLOCK_R": fused_linear._BLOCK_R, "BLOCK_D": fused_linear._BLOCK_D}
    for kernel in (fused_linear._gelu_forward, fused_linear._gelu_backward, fused_linear._pack_heads):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, constants)


def test_without_a_gpu_they_are_pytorchs():
    linear, x = nn.Linear(8, 24), torch.randn(2, 3, 8)
    assert torch.equal(fused_linear.linear_gelu(linear, x), F.gelu(linear(x), approximate="tanh"))
    queries, keys, values = fused_linear.linear_heads(linear, x, 2)
    assert torch.equal(torch.stack([queries, keys, values]), linear(x).view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4))
