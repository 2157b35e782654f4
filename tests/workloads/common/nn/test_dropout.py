"""Dropout in Triton's interpreter: masks against Philox in NumPy, their independence, and both passes."""

from pathlib import Path

import pytest

from timetrial.workloads.common.nn import dropout

ORACLE = Path(__file__).with_name("philox.py").read_text()


PREPARE = """
import torch
from timetrial.workloads.common.nn import dropout as module
module.triton_available = lambda tensor: True
seeds, draw_seed = [], module.draw_seed
def recorded_seed(device):
    seeds.append(draw_seed(device))
    return seeds[-1]
"""

MASKS = (
    ORACLE
    + PREPARE
    + """
module.draw_seed = recorded_seed
# Random123 publishes these words of philox4x32-10.
assert [int(word) for word in philox(0, 0)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
for rows, columns, p, dtype in (
    (300, 500, 0.3, torch.float32),
    (37, 13, 0.5, torch.bfloat16),
    (64, 512, 0.1, torch.float16),
):
    torch.manual_seed(rows)
    x = torch.randn(rows, columns, dtype=dtype)
    size, scale = x.numel(), 2**16 / (2**16 - round(p * 2**16))
    bits = module._draw_bits(module.draw_seed(x.device), size, module.drop_threshold(p)).numpy()
    kept = eight_masks(int(seeds[-1]), p, np.arange(-(-size // 8))).T.flatten()[:size]
    assert (np.unpackbits(bits, bitorder="little")[:size] == kept).all()
    assert abs(kept.mean() - (1 - p)) < 5 * (p * (1 - p) / size) ** 0.5, kept.mean()
    x.requires_grad_()
    y = module.relu_dropout(x, p, True)
    counters = np.arange(-(-size // (8 * 1024)) * 1024)
    blocks = eight_masks(int(seeds[-1]), p, counters).reshape(8, -1, 1024).transpose(1, 0, 2)  # of a program each
    kept = torch.from_numpy(blocks.flatten()[:size].reshape(rows, columns).copy())
    assert abs(kept.double().mean() - (1 - p)) < 5 * (p * (1 - p) / size) ** 0.5
    exact = dict(rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=0)  # the interpreter rounds toward zero
    expected = x.detach().double().relu() * kept * scale
    torch.testing.assert_close(y.detach().double(), expected, **exact)
    dy = torch.randn_like(y)
    y.backward(dy)
    torch.testing.assert_close(x.grad.double(), dy.double() * scale * kept * (x > 0), **exact)
bad = torch.tensor([float("nan"), -1.0, 1.0])
assert module.relu_dropout(bad, 1e-4, True)[0].isnan()  # a loss that is NaN stays so
"""
)


def test_masks_equal_philox(interpret):
    interpret(MASKS)


COMPILED = (
    PREPARE
    + """
torch.manual_seed(5)
p, size = 0.3, (600, 500)
compiled = torch.compile(lambda x, training: module.dropout(x.tanh(), p, training), backend="aot_eager", fullgraph=True)
x = torch.linspace(0.5, 2, 300_000).view(size).requires_grad_()
output = compiled(x, True)
kept = output.detach() != 0
scale = 2**16 / (2**16 - round(p * 2**16))
torch.testing.assert_close(output.detach(), x.detach().tanh() * kept * scale)
for mask in (kept, kept[:, ::2], kept[::2], kept[:, 3::8]):
    assert abs(mask.double().mean() - (1 - p)) < 4 * (p * (1 - p) / mask.numel()) ** 0.5
output.sum().backward()
torch.testing.assert_close(x.grad, (1 - x.detach().tanh() ** 2) * kept * scale)
assert not torch.equal(compiled(x, True) != 0, kept)
torch.testing.assert_close(compiled(x, False), x.tanh())
"""
)


def test_compiled_passes_drop_the_same_elements(interpret):
    interpret(COMPILED)


CORRELATIONS = (
    PREPARE
    + """
from collections import Counter
from timetrial.runner.training.seeds import derive_seed, seed_everything
module._BLOCK = 2**16  # one program
p, draws, columns = 0.3, 48, 1024
x = torch.ones(512, columns)

def mask():
    bits = module._draw_bits(module.draw_seed(x.device), x.numel(), module.drop_threshold(p))
    kept = bits[:, None] >> torch.arange(8) & 1
    return (kept.flatten().double() - (1 - p)) / (p * (1 - p)) ** 0.5

def noise(first, second):  # their correlation in units of its standard deviation if they are independent
    return float((first * second).mean()) * len(first) ** 0.5

sums = Counter()
for draw in range(draws):
    seed_everything(derive_seed(draw, 0))
    first, second = mask(), mask()
    seed_everything(derive_seed(draw, 1))
    other_rank = mask()
    for lag in (1, 2, 3, 4, 7, 8, 64, 1024, 2048, 3072, 4096, 12288):  # elements of a row, and rows
        sums[f"lag {lag}"] += noise(first[lag:], first[:-lag]) ** 2
    for lag in (0, 1024, 3072):
        sums[f"layer or step, lag {lag}"] += noise(first[lag:], second[: len(second) - lag]) ** 2
        sums[f"rank, lag {lag}"] += noise(first[lag:], other_rank[: len(first) - lag]) ** 2
assert max(sums.values()) < draws + 5 * (2 * draws) ** 0.5, sums
"""
)


def test_masks_are_uncorrelated(interpret):
    """Between elements, rows, layers or steps, and ranks: sums of squared correlations are those of noise."""
    interpret(CORRELATIONS)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype):
    types = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "bits_ptr": "*u8", "seed_ptr": "*i64", "scale": "fp32"}
    for kernel in (dropout._draw_bits_kernel, dropout._relu_dropout_kernel):
        of_kernel = {name: kind for name, kind in types.items() if name in kernel.arg_names}
        compile_for_gpu(kernel, capability, of_kernel, {"BLOCK": dropout._BLOCK})
