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


LARGE = """
import torch
from sparse_tensors import sparse_maps, sparse_zeros
from timetrial.workloads.common.nn import stem

stem._BLOCK_CELLS = 1024  # so that the last program writes more than the border
for pixels in (sparse_maps(1100, 3, 1024, 1024, torch.uint8), sparse_zeros(1100, 3, 1024, 1024, dtype=torch.uint8)):
    pixels[-1, :, -2:, -2:] = torch.arange(12).view(3, 2, 2)
    out = stem._unshuffle_by_kernel(pixels, torch.zeros(1, 3, 1, 1), None, torch.float16)
    assert torch.equal(out[-1, :, -2, -2].float(), torch.arange(12.0))
x = sparse_maps(9, 128, 2**11, 2**10)
x[-1, :, -1, -2] = torch.arange(128)
y, places = stem._max_pool(x)
assert torch.equal(y[-1, :, -1, -1].float(), torch.arange(128.0))
assert (places[-1, 1:, -1, -1] == 7).all()
dx = stem._max_pool_gradient(y, places, 2**11, 2**10)
assert torch.equal(dx[-1, 1:, -1, -2], y[-1, 1:, -1, -1])
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
def test_max_pool_compiles_for_gpus(compile_for_gpu, capability, dtype):
    types = dict.fromkeys(("x_ptr", "y_ptr", "dy_ptr", "dx_ptr"), f"*{dtype}") | {"places_ptr": "*u8"}
    for kernel in (stem._max_pool_forward, stem._max_pool_backward):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, {"C": 64, "BLOCK": stem._BLOCK})


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("has_std", [False, True])
def test_normalization_of_pixels_compiles_for_gpus(compile_for_gpu, capability, dtype, has_std):
    types = {"pixels_ptr": "*u8", "mean_ptr": "*fp32", "std_ptr": "*fp32", "out_ptr": f"*{dtype}"}
    constants = {"HAS_STD": has_std, "BLOCK": stem._BLOCK_CELLS}
    compile_for_gpu(stem._normalize_and_unshuffle, capability, types, constants)


def test_without_a_gpu_it_is_pytorchs():
    x = torch.randn(2, 3, 9, 10, dtype=torch.float64)
    assert torch.equal(stem.MaxPool()(x), nn.MaxPool2d(3, 2, 1)(x))
