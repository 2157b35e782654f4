"""The first layers of a ResNet against PyTorch's own operations."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timetrial.workloads.common.nn import stem


@pytest.mark.parametrize("size", [32, 34, 64, 33])
def test_space_to_depth_stem_equals_a_7x7_convolution_of_stride_two(size):
    torch.manual_seed(1)
    layer = stem.SpaceToDepthConv(8).double()
    images = torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(images, layer.weight, stride=2, padding=3)
    torch.testing.assert_close(layer(images), expected)
    gradients = [torch.autograd.grad(out.square().sum(), (images, layer.weight)) for out in (layer(images), expected)]
    torch.testing.assert_close(gradients[0], gradients[1])


INTERPRETED = """
import sys
import torch
from torch.nn import functional as F
from timetrial.workloads.common.nn import stem

stem.triton_available = lambda tensor: True
torch.manual_seed(1)
pool, compiled = stem.MaxPool(), torch.compile(stem.MaxPool(), backend="aot_eager", fullgraph=True)
for shape in ((2, 8, 12, 20), (1, 3, 7, 9), (3, 16, 1, 2), (1, 64, 30, 25)):
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(shape, dtype=dtype).round().contiguous(memory_format=torch.channels_last).requires_grad_()
        expected = F.max_pool2d(x, 3, 2, 1)
        grad = torch.randn(expected.shape, dtype=dtype)
        (wanted,) = torch.autograd.grad(F.max_pool2d(x.double(), 3, 2, 1), x, grad.double())
        for layer in (pool, compiled):
            pooled = layer(x)
            assert torch.equal(pooled, expected)
            assert pooled.is_contiguous(memory_format=torch.channels_last)
            (given,) = torch.autograd.grad(pooled, x, grad)
            torch.testing.assert_close(given, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
x = torch.randn(2, 4, 5, 6)  # another format of memory, and values that are not finite
x[0, 1, 2, 3], x[1, 2, :3, :3] = float("nan"), -float("inf")
assert torch.equal(pool(x).isnan(), F.max_pool2d(x, 3, 2, 1).isnan())
assert torch.equal(pool(x).nan_to_num(), F.max_pool2d(x, 3, 2, 1).nan_to_num())
"""


def test_max_pool_equals_pytorch(interpret):
    """With ties, whose gradient is the first one's, at odd edges, and in a compiled graph."""
    interpret(INTERPRETED)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
def test_max_pool_compiles_for_gpus(compile_for_gpu, capability, dtype):
    types = dict.fromkeys(("x", "pooled", "grad", "out"), f"*{dtype}") | {"places": "*u8"}
    for kernel in (stem._pool, stem._unpool):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, {"C": 64, "BLOCK": stem._BLOCK})


def test_without_a_gpu_it_is_pytorchs():
    x = torch.randn(2, 3, 9, 10, dtype=torch.float64)
    assert torch.equal(stem.MaxPool()(x), nn.MaxPool2d(3, 2, 1)(x))
