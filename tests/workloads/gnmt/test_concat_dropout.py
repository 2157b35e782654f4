"""The dropout kernel in Triton's interpreter: which elements it drops, and that both passes drop the same."""

import pytest

from timetrial.workloads.gnmt import concat_dropout

INTERPRETED = """
import math, torch
from timetrial.workloads.gnmt import concat_dropout as module
module.triton_available = lambda tensor: True
def dropout(left, right, p):
    return module.concat_dropout(left, right, p, True)
for dtype, rows, widths, p in (
    (torch.float32, 331, (16, 24), 0.2),
    (torch.float32, 1000, (13, 0), 0.5),
    (torch.bfloat16, 257, (64, 32), 0.1),
):
    torch.manual_seed(1)
    left = torch.randn(rows, widths[0], dtype=dtype).add_(10).requires_grad_()
    right = torch.randn(rows, widths[1], dtype=dtype).add_(10).requires_grad_() if widths[1] else None
    out = dropout(left, right, p)
    expected = torch.cat([left] if right is None else [left, right], 1)
    kept = out != 0
    tolerance = 5 * math.sqrt(p * (1 - p) / out.numel())
    assert abs(kept.double().mean() - (1 - p)) < tolerance, kept.double().mean()
    blocks = kept.flatten()[: out.numel() // 1024 * 1024].view(-1, 1024)  # a part of a program each
    equal = (blocks[:, None] == blocks).double().mean(2)[~torch.eye(len(blocks), dtype=torch.bool)]
    expected_equal = p**2 + (1 - p) ** 2
    assert (equal - expected_equal).abs().max() < 6 * math.sqrt(expected_equal * (1 - expected_equal) / 1024)
    exact = dict(rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=0)  # the interpreter rounds toward zero
    torch.testing.assert_close(out.double(), expected.double() * kept / (1 - p), **exact)
    grad = torch.randn_like(out)
    out.backward(grad)
    grads = [left.grad] if right is None else [left.grad, right.grad]
    torch.testing.assert_close(torch.cat(grads, 1).double(), grad.double() * kept / (1 - p), **exact)
    assert not torch.equal(dropout(left, right, p) != 0, kept)
    torch.manual_seed(2)
    again = dropout(left, right, p)
    torch.manual_seed(2)
    assert torch.equal(dropout(left, right, p), again)
"""

HUGE = """
import torch
from huge_tensors import HugeTensor, run_program
from timetrial.workloads.gnmt import concat_dropout as module
rows, widths = 3_000_000, (512, 1024)  # more than 2**31 elements, also on the right side
size = rows * sum(widths)
programs = size // (4 * module._BLOCK)
for backward in (False, True):
    left, right, joined = (HugeTensor(torch.bfloat16, rows * width) for width in (*widths, sum(widths)))
    run_program(
        module._drop, (programs - 1, 0, 0), (programs, 1, 1), left_ptr=left, right_ptr=right, joined_ptr=joined,
        seed_ptr=torch.zeros(1, dtype=torch.int64), size=size, threshold=1 << 22, scale=4 / 3, L=widths[0], R=widths[1],
        BACKWARD=backward, BLOCK=module._BLOCK,
    )
    for tensor in (left, right, joined):
        assert tensor.last == tensor.size - 1
    assert joined.first == size - 4 * module._BLOCK
"""


def test_elements_are_dropped_in_both_passes_alike(interpret):
    interpret(INTERPRETED)


def test_last_program_beyond_2_to_31_elements_reaches_its_own(interpret):
    interpret(HUGE)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("widths", [(1024, 1024), (1024, 0)])
@pytest.mark.parametrize("backward", [False, True])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype, widths, backward):
    types = dict.fromkeys(("left_ptr", "right_ptr", "joined_ptr"), f"*{dtype}") | {"seed_ptr": "*i64", "scale": "fp32"}
    constants = {"L": widths[0], "R": widths[1], "BACKWARD": backward, "BLOCK": concat_dropout._BLOCK}
    compile_for_gpu(concat_dropout._drop, capability, types, constants)
