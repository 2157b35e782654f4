"""Color jitter by Triton's interpreter against torchvision."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from timetrial.workloads.ssd import color_jitter

JITTER = """
import itertools
import numpy as np, torch
from timetrial.workloads.ssd.color_jitter import jitter_factors, jitter_image
from timetrial.workloads.ssd.kernels import jitter

generator = np.random.default_rng(1)
order = list(itertools.permutations(range(4)))
for dtype in (torch.int32, torch.int64):
    pixels = torch.from_numpy(generator.integers(256, size=(len(order), 29, 27, 3), dtype=np.uint8))
    pixels[:, :4] = pixels[:, :4, :, :1]  # gray
    pixels[:, 4:6, :, 1] = pixels[:, 4:6, :, 2]  # two equal channels
    pixels[:, 6] = torch.randint(2, (27, 3)) * 255
    factors = [jitter_factors(generator)[0] for _ in order]
    factors[3], factors[7], factors[20] = (1.0, 1.0, 1.0, 0.0), (0.0, 2.0, 2.0, 0.5), (1.0, 1.5, 0.0, -0.5)
    result = jitter(pixels, torch.tensor(factors), torch.tensor(order, dtype=dtype))
    expected = [jitter_image(*arguments) for arguments in zip(pixels, factors, order, strict=True)]
    assert torch.equal(result, torch.stack(expected))
    assert (result != pixels).float().mean() > 0.8
"""


def test_jitter_equals_torchvision_in_every_order(interpret):
    interpret(JITTER)


LARGE = """
import torch
from sparse_tensors import sparse_zeros
from timetrial.workloads.ssd import color_jitter, kernels

torch.manual_seed(1)
count = 2**14
pixels = sparse_zeros(count, 256, 256, 3, dtype=torch.uint8)
pixels[-1, -2:] = torch.randint(256, (2, 256, 3))
factors, order = torch.tensor([[1.1, 1.0, 0.8, 0.02]]), torch.arange(4)[None]
out = kernels.jitter(pixels, factors.expand(count, 4), order.expand(count, 4))
expected = color_jitter.jitter_image(pixels[-1], factors[0].tolist(), order[0].tolist())
assert torch.equal(out[-1, -2:], expected[-2:])
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


def test_draws_factors_and_orders_like_color_jitter():
    generator = np.random.default_rng(1)
    factors, orders = zip(*(color_jitter.jitter_factors(generator) for _ in range(2000)), strict=True)
    assert set(orders) == set(itertools.permutations(range(4)))
    values = np.array(factors)
    assert np.array_equal(values, values.astype(np.float32))
    low, high = np.array([0.875, 0.5, 0.5, -0.05]), np.array([1.125, 1.5, 1.5, 0.05])
    assert ((values > low - 1e-8) & (values < high + 1e-8)).all()
    np.testing.assert_allclose(np.quantile(values, [0.01, 0.5, 0.99], 0)[0], low, atol=0.02)
    np.testing.assert_allclose(np.quantile(values, [0.01, 0.5, 0.99], 0)[1], (low + high) / 2, atol=0.04)
    np.testing.assert_allclose(np.quantile(values, [0.01, 0.5, 0.99], 0)[2], high, atol=0.02)


@pytest.mark.parametrize(
    ("step", "name", "factor", "levels"),
    [(0, "brightness", 1.1, 1), (1, "contrast", 0.6, 1), (2, "saturation", 1.4, 2), (3, "hue", -0.04, 12)],
)
def test_cpu_steps_equal_torchvision_on_pillow_images(step, name, factor, levels):
    pixels = np.random.default_rng(1).integers(256, size=(20, 30, 3), dtype=np.uint8)
    factors = [1.0, 1.0, 1.0, 0.0]
    factors[step] = factor
    result = color_jitter.jitter_image(torch.from_numpy(pixels), tuple(factors), (step,))
    expected = np.array(getattr(functional, f"adjust_{name}")(Image.fromarray(pixels), factor))
    difference = np.abs(result.numpy().astype(int) - expected)
    assert result.is_contiguous()
    assert difference.max() <= levels
    assert difference.mean() < 2
