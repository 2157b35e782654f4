"""Residual add and layer norm by Triton's interpreter against PyTorch in float64, and compiled for GPUs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from timetrial.workloads.gpt import add_layer_norm as module

INTERPRETED = """
import functools, itertools, sys
import torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from kernel_checks import check, transposed
from timetrial.workloads.gpt import add_layer_norm as module

torch.manual_seed(1)
module._PROGRAMS_PER_MULTIPROCESSOR, module._TILE = 3, 256  # several rows and tiles of a program
check = functools.partial(check, module, module.add_layer_norm)
for bias, width, (has_branch, has_bias) in itertools.product(
        (True, False), (24, 128), itertools.product((True, False), repeat=2)):
    norm = nn.LayerNorm(width, bias=bias)
    for parameter in norm.parameters():
        parameter.data.normal_()
    x, branch, branch_bias = (
        torch.randn(shape).mul(3).add(1).requires_grad_() for shape in ((2, 13, width), (2, 13, width), (width,)))
    inputs = [x, branch if has_branch else None, branch_bias if has_bias else None]
    for make_grad in (torch.randn, transposed):
        check(norm, inputs, "AddLayerNorm", make_grad)
x, branch = torch.randn(2, 13, 24).requires_grad_(), torch.randn(2, 24, 13).mT.requires_grad_()
check(nn.LayerNorm(24), (x, branch, None), "AddLayerNorm")
"""


def test_equals_pytorch_in_float64(interpret):
    """Results and gradients, with and without biases, branches and full tiles."""
    interpret(INTERPRETED, str(Path(__file__).parent))


LARGE = """
import sys
import torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from kernel_checks import empty_but_end
from timetrial.runner.hardware import devices
from timetrial.workloads.gpt import add_layer_norm as module

devices.num_multiprocessors = lambda device: 1 << 13
module.triton_available = lambda tensor: True
norm = nn.LayerNorm(128)
x, branch, dsum, dy = (empty_but_end(2**24 + 2**15, 128) for _ in range(4))
x.requires_grad_()
total, normalized = module.add_layer_norm(norm, x, branch, norm.bias)
wide = (x[:, -8:].detach().float() + branch[:, -8:].float()).requires_grad_()
expected = norm(wide)
torch.testing.assert_close(total[:, -8:].float(), wide, rtol=1e-2, atol=1e-2)
torch.testing.assert_close(normalized[:, -8:].float(), expected, rtol=1e-2, atol=1e-2)
(dx,) = torch.autograd.grad([total, normalized], [x], [dsum, dy])
expected.backward(dy[:, -8:].float())
torch.testing.assert_close(dx[:, -8:].float(), wide.grad + dsum[:, -8:].float(), rtol=1e-2, atol=1e-2)
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE, str(Path(__file__).parent))


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("flag", [False, True])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype, flag):
    types = dict.fromkeys(("x_ptr", "branch_ptr", "sum_ptr", "y_ptr", "dy_ptr", "dsum_ptr", "dx_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("branch_bias_ptr", "mean_ptr", "rstd_ptr", "weight_ptr", "bias_ptr", "sums_ptr"), "*fp32")
    types |= {"eps": "fp32"}
    constants = dict.fromkeys(("HAS_BRANCH", "HAS_BRANCH_BIAS", "HAS_BIAS", "HAS_DSUM"), flag)
    constants |= {"BLOCK_R": 4, "BLOCK_D": 1024}
    for kernel in (module._add_layer_norm_forward, module._add_layer_norm_backward):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, constants)


def test_without_a_gpu_it_is_pytorchs():
    norm, x, branch = nn.LayerNorm(8), torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    total, normalized = module.add_layer_norm(norm, x, branch)
    assert torch.equal(total, x + branch)
    assert torch.equal(normalized, norm(x + branch))
    assert torch.equal(module.add_layer_norm(norm, x, branch, norm.bias + 1)[0], x + (branch + 1))
    assert torch.equal(module.add_layer_norm(norm, x)[1], norm(x))
