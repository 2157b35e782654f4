"""NeuMF's kernels by Triton's interpreter against a float64 transcription of the MLPerf v0.5 definition."""

from pathlib import Path

import pytest
import torch

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
