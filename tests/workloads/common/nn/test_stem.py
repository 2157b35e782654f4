"""The first layers of a ResNet against PyTorch's own operations."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timetrial.workloads.common.nn import stem


@pytest.mark.parametrize("size", [32, 34, 64, 33])
@pytest.mark.parametrize("has_std", [False, True])
def test_space_to_depth_stem_equals_a_7x7_convolution_of_stride_two(size, has_std):
    torch.manual_seed(1)
    layer = stem.SpaceToDepthConv(8).double()
    pixels = torch.randint(256, (2, 3, size, size + 2), dtype=torch.uint8)
    mean, std = (torch.rand(1, 3, 1, 1, dtype=torch.float64) * 100 + 1 for _ in range(2))
    images = (pixels.double() - mean) / (std if has_std else 1)
    expected = F.conv2d(images, layer.weight, stride=2, padding=3)
    result = layer(pixels, mean, std if has_std else None)
    torch.testing.assert_close(result, expected)
    gradients = [torch.autograd.grad(out.square().sum(), layer.weight) for out in (result, expected)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_unshuffled_pixels_of_the_kernel_equal_pytorchs(interpret):
    """Odd sizes, both formats of memory, pixels of images that are cut out of larger ones."""
    interpret("""
import itertools
import torch
from timetrial.workloads.common.nn import stem

torch.manual_seed(1)
mean, std = (torch.rand(1, 3, 1, 1) * 100 + 1 for _ in range(2))
for size, dtype, divisor in itertools.product(((6, 8), (9, 7), (1, 2)), (torch.float32, torch.bfloat16), (None, std)):
    pixels = torch.randint(256, (3, 3, *size), dtype=torch.uint8)
    wide = torch.randint(256, (3, 3, size[0] + 4, size[1] + 5), dtype=torch.uint8)
    formats = (pixels, pixels.contiguous(memory_format=torch.channels_last), wide[:, :, 2:-2, 3:-2])
    for given in formats:
        result = stem._unshuffle_by_kernel(given, mean, divisor, dtype)
        assert result.is_contiguous(memory_format=torch.channels_last)
        tolerances = {"rtol": 1e-2 if dtype == torch.bfloat16 else 1e-5, "atol": 1e-5}
        torch.testing.assert_close(result, stem._unshuffle(given, mean, divisor, dtype), **tolerances)
""")


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


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("has_std", [False, True])
def test_normalization_of_pixels_compiles_for_gpus(compile_for_gpu, capability, dtype, has_std):
    types = {"pixels": "*u8", "mean": "*fp32", "std": "*fp32", "out": f"*{dtype}"}
    constants = {"HAS_STD": has_std, "BLOCK": stem._PLACES}
    compile_for_gpu(stem._normalize_and_unshuffle, capability, types, constants)


def test_without_a_gpu_it_is_pytorchs():
    x = torch.randn(2, 3, 9, 10, dtype=torch.float64)
    assert torch.equal(stem.MaxPool()(x), nn.MaxPool2d(3, 2, 1)(x))
