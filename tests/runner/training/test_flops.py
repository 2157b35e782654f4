"""Counted operations and bytes against known costs of models and operators."""

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


def count(function):
    """Return operations and bytes of a call."""
    flop_counter, byte_counter = flops.make_counters()
    with flop_counter, byte_counter:
        function()
    return flop_counter.get_total_flops(), byte_counter.total


def test_matrix_product_costs_2mnk_operations_and_three_matrices():
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    assert count(lambda: a @ b) == (2 * 20 * 40 * 30, 4 * (20 * 30 + 30 * 40 + 20 * 40))
    out = torch.zeros(20, 40)
    assert count(lambda: torch.mm(a, b, out=out)) == (2 * 20 * 40 * 30, 4 * (20 * 30 + 30 * 40 + 20 * 40))
    assert count(lambda: out.addmm_(a, b)) == (2 * 20 * 40 * 30, 4 * (20 * 30 + 30 * 40 + 2 * 20 * 40))
    assert count(lambda: a @ b[:, 0])[0] == 2 * 20 * 30


@pytest.mark.integration
def test_resnet50_costs_4_09_billion_multiply_adds_per_image_and_training_three_times_that():
    model, x = torchvision.models.resnet50(), torch.randn(2, 3, 224, 224)
    forward, _ = count(lambda: model(x))
    assert forward / 2 / 2 == pytest.approx(4.09e9, rel=0.005)
    training, _ = count(lambda: model(x).sum().backward())
    assert training / forward == pytest.approx(3, rel=0.03)  # without the gradient of the image


def test_training_a_transformer_costs_6_operations_per_weight_and_token():
    width, tokens = 64, 8
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2)]
    model, x = nn.Sequential(*layers), torch.randn(16, tokens, width)
    weights = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    operations, _ = count(lambda: model(x).sum().backward())
    attention = 2 * 16 * 14 * tokens * tokens * width  # seven matrix products, forward and backward
    # Without the gradient of the input, the first matrix takes two of its three products.
    first = 2 * 16 * tokens * 3 * width * width
    assert operations == pytest.approx(6 * weights * 16 * tokens + attention - first, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_counts_recurrent_layers_and_attention_on_cpu(dtype):
    layer, x = nn.LSTM(24, 32, dtype=dtype), torch.randn(5, 3, 24, dtype=dtype, requires_grad=True)
    forward = 2 * 5 * 3 * (4 * 32 * 24 + 4 * 32 * 32)
    operations, _ = count(lambda: layer(x)[0].sum().backward())
    # Where oneDNN has no bf16, on CPUs without AVX-512, PyTorch's own layer omits the gradient of the initial state.
    by_onednn = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert operations == 3 * forward - (0 if by_onednn else 2 * 3 * 4 * 32 * 32)
    q, k, v = (torch.randn(2, 4, 16, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert count(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())[0] == 7 * product


def test_bytes_are_counted_once_per_operand():
    x, table, ids = torch.randn(10, 4), torch.randn(1000, 4), torch.tensor([3, 5])
    assert count(lambda: x.t()[1:].detach())[1] == 0
    assert count(lambda: x + 1)[1] == 2 * 160
    assert count(lambda: x.add_(1))[1] == 2 * 160
    assert count(lambda: torch.empty(7).copy_(x[0, 0].expand(7)))[1] == 28 + 28
    assert count(lambda: table[ids])[1] <= 3 * 32  # the selected rows, not the table
    grads = [torch.ones(8), torch.ones(8)]
    values = [torch.ones(8), torch.ones(8)]
    assert count(lambda: torch._foreach_add_(values, grads))[1] == 3 * 64


def test_step_cost_of_an_engine(toy_engine, toy_data, toy_workload):
    """Linear layers 5 -> 8 and 8 -> 1; the gradient of the input is not computed."""
    engine = toy_engine(toy_workload(), toy_data())
    cost = flops.count_flops(engine)
    assert (cost.steps, cost.samples, cost.tokens) == (4, 50, 0)
    assert cost.operations == 50 * 2 * (2 * 5 * 8 + 3 * 8)
    weights = 4 * (5 * 8 + 8 + 8 + 1)
    assert cost.least_bytes == 4 * 50 * 7 + 4 * 2 * 3 * weights  # weights, gradients and momenta
    assert cost.unfused_bytes > cost.least_bytes


def test_gradient_accumulation_does_not_change_the_cost_per_sample(toy_engine, toy_data, toy_workload):
    from timetrial.runner.training.workload import BatchSharding

    full = flops.count_flops(toy_engine(toy_workload(), toy_data()))
    split = flops.count_flops(toy_engine(toy_workload(), toy_data(BatchSharding(accumulation=2))))
    assert split.operations / split.samples == pytest.approx(full.operations / full.samples, rel=0.01)
    assert split.least_bytes / split.samples == pytest.approx(full.least_bytes / full.samples, rel=0.01)


def test_failure_to_count_is_printed_and_returns_none(toy_engine, toy_data, toy_workload, capsys):
    engine = toy_engine(toy_workload(), toy_data())
    engine.workload.compute_loss = None
    assert flops.try_count_flops(engine) is None
    assert "Counting operations failed: TypeError" in capsys.readouterr().err


@pytest.mark.integration
def test_compiled_model_is_counted_uncompiled(toy_engine, toy_data, toy_workload):
    uncompiled = flops.count_flops(toy_engine(toy_workload(), toy_data()))
    assert flops.count_flops(toy_engine(toy_workload(), toy_data(), compile_mode="default")) == uncompiled


@pytest.mark.gpu
def test_fused_gpu_kernels_count_as_the_operators_that_they_replace(tmp_path):
    """Embeddings and dense layers use fused kernels on the GPU and PyTorch's operators on the CPU."""
    operations_per_sample = []
    for accelerator in ("cpu", devices.detect_accelerator()):
        overrides = ["workload=ncf", "scale=embedded", "data=torch", "launcher=inline", "precision=bf16"]
        overrides += ["throughput.steps=2", "throughput.blocks=2", f"accelerator={accelerator}"]
        overrides += [f"run_dir={tmp_path / accelerator}"]
        subprocess.run([sys.executable, "-P", "-m", "timetrial", "throughput", *overrides], cwd=tmp_path, check=True)
        record = json.loads((tmp_path / accelerator / "status.json").read_text())
        cost = record["throughput"]["step_cost"]
        operations_per_sample.append(cost["operations"] / cost["samples"])
    assert operations_per_sample[0] == pytest.approx(operations_per_sample[1], rel=0.01)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_backward_pass_of_grouped_convolutions_costs_two_forward_passes(groups):
    x, w = torch.randn(2, 8, 6, 6, requires_grad=True), torch.randn(8, 8 // groups, 3, 3, requires_grad=True)
    operations, _ = count(lambda: F.conv2d(x, w, padding=1, groups=groups).sum().backward())
    assert operations == 3 * 2 * 2 * 8 * 36 * (8 // groups) * 9
    w = torch.randn(8, 8 // groups, 3, 3, requires_grad=True)
    operations, _ = count(lambda: F.conv_transpose2d(x, w, padding=1, groups=groups).sum().backward())
    assert operations == 3 * 2 * 2 * 8 * 36 * (8 // groups) * 9


def test_unequal_micro_batches_are_weighted_by_their_size(toy_engine, toy_data, toy_workload):
    """Each of three ranks has 2 or 3 of 8 samples, in micro-batches of 1 or 2."""
    from timetrial.runner.training.workload import BatchSharding

    full = flops.count_flops(toy_engine(toy_workload(), toy_data()))
    for rank in range(3):
        data = toy_data(BatchSharding(rank=rank, ranks=3, accumulation=2))
        split = flops.count_flops(toy_engine(toy_workload(), data))
        assert split.operations / split.samples == pytest.approx(full.operations / full.samples)
