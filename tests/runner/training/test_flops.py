"""Counted operations and bytes against what models and operations are known to take."""

import json
import subprocess
import sys

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from timetrial.runner.hardware import devices
from timetrial.runner.training import flops


def counted(work):
    counter, traffic = flops.counters()
    with counter, traffic:
        work()
    return counter.get_total_flops(), traffic.total


def test_a_matrix_product_is_2mnk_operations_and_three_matrices():
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    assert counted(lambda: a @ b) == (2 * 20 * 40 * 30, 4 * (20 * 30 + 30 * 40 + 20 * 40))
    out = torch.zeros(20, 40)
    assert counted(lambda: torch.mm(a, b, out=out)) == (2 * 20 * 40 * 30, 4 * (20 * 30 + 30 * 40 + 20 * 40))
    assert counted(lambda: out.addmm_(a, b)) == (2 * 20 * 40 * 30, 4 * (20 * 30 + 30 * 40 + 2 * 20 * 40))
    assert counted(lambda: a @ b[:, 0])[0] == 2 * 20 * 30


def test_resnet_50_takes_4_09_billion_multiply_adds_an_image_and_three_times_that_to_train():
    model, x = torchvision.models.resnet50(), torch.randn(2, 3, 224, 224)
    forward, _ = counted(lambda: model(x))
    assert forward / 2 / 2 == pytest.approx(4.09e9, rel=0.005)
    training, _ = counted(lambda: model(x).sum().backward())
    assert training / forward == pytest.approx(3, rel=0.03)  # the picture's own gradient is not made


def test_a_transformer_trains_at_6_operations_a_weight_and_token():
    width, tokens = 64, 8
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2)]
    model, x = nn.Sequential(*layers), torch.randn(16, tokens, width)
    weights = sum(one.numel() for one in model.parameters() if one.dim() == 2)
    found, _ = counted(lambda: model(x).sum().backward())
    attention = 2 * 16 * 14 * tokens * tokens * width  # seven products of two operations, forward and back
    # The gradient of the input itself is not made: of the first layer's first matrix two of three products.
    first = 2 * 16 * tokens * 3 * width * width
    assert found == pytest.approx(6 * weights * 16 * tokens + attention - first, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_layers_and_attention_on_a_processor_are_counted(dtype):
    layer, x = nn.LSTM(24, 32, dtype=dtype), torch.randn(5, 3, 24, dtype=dtype, requires_grad=True)
    each = 2 * 5 * 3 * (4 * 32 * 24 + 4 * 32 * 32)
    assert counted(lambda: layer(x)[0].sum().backward())[0] == 3 * each
    q, k, v = (torch.randn(2, 4, 16, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    each = 2 * 2 * 4 * 16 * 16 * 8
    assert counted(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())[0] == 7 * each


def test_bytes_are_of_what_moves():
    x, table, ids = torch.randn(10, 4), torch.randn(1000, 4), torch.tensor([3, 5])
    assert counted(lambda: x.t()[1:].detach())[1] == 0
    assert counted(lambda: x + 1)[1] == 2 * 160
    assert counted(lambda: x.add_(1))[1] == 2 * 160
    assert counted(lambda: torch.empty(7).copy_(x[0, 0].expand(7)))[1] == 28 + 28
    assert counted(lambda: table[ids])[1] <= 3 * 32  # rows, not the table
    grads = [torch.ones(8), torch.ones(8)]
    values = [torch.ones(8), torch.ones(8)]
    assert counted(lambda: torch._foreach_add_(values, grads))[1] == 3 * 64


def test_a_step_of_an_engine(toy_engine, toy_data, toy_workload):
    """A layer of 5 to 8 and one of 8 to 1: of the first, the gradient of the input is not made."""
    engine = toy_engine(toy_workload(), toy_data())
    found = flops.count(engine)
    assert (found.steps, found.samples, found.tokens) == (4, 50, 0)
    assert found.operations == 50 * 2 * (2 * 5 * 8 + 3 * 8)
    weights = 4 * (5 * 8 + 8 + 8 + 1)
    assert found.least_bytes == 4 * 50 * 7 + 4 * 2 * 3 * weights  # with gradients and momenta
    assert found.unfused_bytes > found.least_bytes


def test_accumulated_micro_batches_are_parts_of_a_step(toy_engine, toy_data, toy_workload):
    from timetrial.runner.training.workload import BatchSharding

    whole = flops.count(toy_engine(toy_workload(), toy_data()))
    parts = flops.count(toy_engine(toy_workload(), toy_data(BatchSharding(accumulation=2))))
    assert parts.operations / parts.samples == pytest.approx(whole.operations / whole.samples, rel=0.01)
    assert parts.least_bytes / parts.samples == pytest.approx(whole.least_bytes / whole.samples, rel=0.01)


def test_what_cannot_be_counted_loses_no_measurement(toy_engine, toy_data, toy_workload, capsys):
    engine = toy_engine(toy_workload(), toy_data())
    engine.workload.loss = None
    assert flops.counted(engine) is None
    assert "Operations were not counted: TypeError" in capsys.readouterr().err


def test_a_compiled_model_is_seen_through(toy_engine, toy_data, toy_workload):
    plain = flops.count(toy_engine(toy_workload(), toy_data()))
    assert flops.count(toy_engine(toy_workload(), toy_data(), compile_mode="default")) == plain


@pytest.mark.gpu
def test_kernels_that_no_counter_sees_count_as_the_plain_code_does(tmp_path):
    """Embeddings and dense layers by fused kernels on a card, by PyTorch's own on the processor."""
    found = []
    for place in ("cpu", devices.detect()):
        words = ["workload=ncf", "scale=embedded", "data=torch", "launcher=inline", "precision=bf16"]
        words += ["throughput.steps=2", "throughput.blocks=2", f"accelerator={place}", f"run_dir={tmp_path / place}"]
        subprocess.run([sys.executable, "-P", "-m", "timetrial", "throughput", *words], cwd=tmp_path, check=True)
        counted = json.loads((tmp_path / place / "status.json").read_text())["result"]["counted"]
        found.append(counted["operations"] / counted["samples"])
    assert found[0] == pytest.approx(found[1], rel=0.01)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolutions_in_groups_take_two_more_passes_on_their_way_back(groups):
    x, w = torch.randn(2, 8, 6, 6, requires_grad=True), torch.randn(8, 8 // groups, 3, 3, requires_grad=True)
    found, _ = counted(lambda: F.conv2d(x, w, padding=1, groups=groups).sum().backward())
    assert found == 3 * 2 * 2 * 8 * 36 * (8 // groups) * 9
    w = torch.randn(8, 8 // groups, 3, 3, requires_grad=True)
    found, _ = counted(lambda: F.conv_transpose2d(x, w, padding=1, groups=groups).sum().backward())
    assert found == 3 * 2 * 2 * 8 * 36 * (8 // groups) * 9


def test_parts_that_are_unequal_count_as_what_they_are(toy_engine, toy_data, toy_workload):
    """A rank of three has 2 or 3 of 8 samples, in micro-batches of 1 or 2."""
    from timetrial.runner.training.workload import BatchSharding

    whole = flops.count(toy_engine(toy_workload(), toy_data()))
    for rank in range(3):
        data = toy_data(BatchSharding(rank=rank, ranks=3, accumulation=2))
        parts = flops.count(toy_engine(toy_workload(), data))
        assert parts.operations / parts.samples == pytest.approx(whole.operations / whole.samples)
