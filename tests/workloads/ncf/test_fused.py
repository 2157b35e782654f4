"""NeuMF's kernels by Triton's interpreter against a float64 transcription of the MLPerf v0.5 definition."""

import re
from pathlib import Path

import pytest
import torch

from timetrial.workloads.ncf import segment_sums

INTERPRETED = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import test_model as test
from timetrial.runner.hardware import devices
from timetrial.workloads.ncf import fused, model as module
devices.num_multiprocessors = lambda device: 2
module.triton_available = lambda tensor: True
fused._max_shared_memory = lambda index: 1 << 20
for samples in (300, 20, 0):
    model, batch = test.make_model(), test.make_batch(samples)
    with torch.autocast("cpu", dtype=torch.float16):
        assert model._fused_dtype(batch[0])
        loss = model(*batch)
    (loss * 1e-6).backward()  # fp16 gradients would underflow at this scale
    expected, gradients = test.oracle(model, *batch[:3])
    assert abs(loss.item() - expected.item()) <= 1e-4 * expected.item()
    for name, value in model.named_parameters():
        error = (value.grad.double() * 1e6 - gradients[name]).norm()
        assert error <= 0.08 * gradients[name].norm(), (samples, name)  # in fp16 a few ReLUs change sign
items = test.make_batch(36)[1].view(3, 12)
users = torch.tensor([3, 7, 7], dtype=torch.int32)
with torch.autocast("cpu", dtype=torch.float16):
    fused = model.scores(users, items)
module.triton_available = lambda tensor: False
assert test.relative_error(fused, model.scores(users, items).double()) < 1e-3
"""


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the tests marked gpu run the real kernels")
def test_fused_kernels_in_interpreter(interpret):
    interpret(INTERPRETED, str(Path(__file__).parent))


LARGE = """
import torch
from timetrial.runner.hardware import devices
from timetrial.workloads.ncf import segment_sums
from timetrial.workloads.ncf.projection import project_table, project_table_backward
from timetrial.workloads.ncf.segment_sums import GMFSide, sum_gradients
from timetrial.workloads.ncf.tower import tower_gradients, tower_logits

torch.manual_seed(0)
devices.num_multiprocessors = lambda device: 1 << 12
END = 64  # rows that have values


def empty_but_end(rows, width):
    tensor = torch.empty(rows, width, dtype=torch.float16)
    tensor[-END:] = torch.randn(END, width)
    return tensor


def assert_close(actual, expected):
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)


# As many rows of tables and samples of a batch, above 2^24: products with widths of 128 exceed 2^31.
rows, h1, h2, h3, g = 2**24 + 2**19, 128, 128, 16, 128
sizes = ((h2, h1), (h2,), (h3, h2), (h3,), (1, g + h3), (1,))
layers = [torch.randn(size) * 0.2 for size in sizes]
w2, b2, w3, b3, w4, b4 = (layer.half().float() for layer in layers)
table, other = empty_but_end(rows, h1), empty_but_end(rows, g)


def logits_of_end(first):
    third = (first.relu() @ w2.T + b2).relu() @ w3.T + b3
    gmf = other[-END:].float() ** 2
    return (torch.cat([gmf, third.relu()], 1) @ w4.T + b4)[:, 0]


users, items, labels = (torch.zeros(rows, dtype=dtype) for dtype in (torch.int32, torch.int32, torch.float32))
users[-END:] = items[-END:] = torch.arange(rows - END, rows)
for second_table in (None, table):
    dfirst, _, _ = tower_gradients((table, second_table), (other, other), users, items, labels, tuple(layers))
    first = (table[-END:].float() * (1 if second_table is None else 2)).requires_grad_()
    (expected,) = torch.autograd.grad(torch.nn.functional.softplus(logits_of_end(first)).sum(), first)
    assert expected.norm() > 1
    assert_close(dfirst[-END:, -h1 // 4 :], expected[:, -h1 // 4 :])  # the last program has the last columns
    del dfirst

items = torch.zeros(rows, 1, dtype=torch.int32)
items[-END:, 0] = torch.arange(rows - END, rows)
assert_close(tower_logits((table, table), (other, other), items, tuple(layers))[-END:, 0], logits_of_end(first))

starts = torch.zeros(rows + 1, dtype=torch.int32)
starts[-1] = 5
ids, dlogit, dloss = torch.full((5,), rows - 1, dtype=torch.int32), torch.randn(5), torch.tensor(0.5)
values, out = torch.randn(5, h1).half(), torch.empty_like(table)
for order in (torch.arange(5, dtype=torch.int32), None):
    side = GMFSide(order, starts, other, other, ids)
    dgmf, _ = sum_gradients(values, side, dlogit, w4, dloss, out, scaled=True)
    assert_close(out[-1], values.float().sum(0) * dloss)
    assert_close(dgmf[-1], dlogit.sum() * other[-1] * w4[0, :g] * dloss)
del out, dgmf, table, other

table, weight = empty_but_end(rows, 128), torch.randn(128, 128).half().float()
projected = project_table(table, weight, None, torch.float16)
assert_close(projected[-END:], table[-END:].float() @ weight.T)
dtable = project_table_backward(projected, table, weight, dloss, torch.empty(1 << 13, 128, 128))
assert_close(dtable[-END:], projected[-END:].float() @ weight * dloss)

sums = torch.empty(rows // END, 128)
segment_sums._sum_rows[(1, rows // END)](
    parts_ptr=table, out_ptr=sums, num_rows=rows, width=128, rows_per_program=END, BLOCK_P=32, BLOCK_D=128
)
assert_close(sums[-1], table[-END:].float().sum(0))
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize("order", ["*i32", None])
def test_offsets_of_segment_sums_are_64_bits_wide(compile_for_gpu, order):
    """The interpreter counts segments by Python's integers, which do not overflow."""
    types = dict.fromkeys(("starts_ptr", "other_ids_ptr"), "*i32") | dict.fromkeys(("values_ptr", "out_ptr"), "*bf16")
    floats = ("dloss", "dlogit", "table", "other_table", "weight", "dgmf", "dweight")
    types |= {f"{name}_ptr": "*fp32" for name in floats}
    constants = {"D": 256, "G": 64, "BLOCK_B": 8, "SEGMENTS": 1, "SCALED": True}
    if order is None:
        constants["order_ptr"] = None
    else:
        types["order_ptr"] = order
    compiled = compile_for_gpu(segment_sums._sum_segments, 90, types, constants)
    products = re.findall(r"arith\.muli .* : (.*)", compiled.asm["ttir"])
    assert len(products) >= 5
    assert all("i64" in kind for kind in products), products
