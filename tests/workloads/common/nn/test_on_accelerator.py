"""Layers of convolutional networks on a GPU."""

import copy

import pytest
import torch

from timetrial.workloads.common.nn import batch_norm, stem
from timetrial.workloads.common.nn.batch_norm import batch_norm_relu, residual_batch_norm_relu
from timetrial.workloads.resnet50.model import build_resnet

pytestmark = pytest.mark.gpu


# A value next to zero may be masked in one precision only: some of two million are, an error of 1e-3.
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("num_norms", [0, 1, 2])
def test_fused_batch_norm_equals_pytorch_in_float64(dtype, bound, num_norms):
    """Without a residual, with one, and with one that has a norm of its own."""
    device = torch.accelerator.current_accelerator()
    norms = [torch.nn.BatchNorm2d(128).to(device) for _ in range(max(1, num_norms))]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    wide_norms = [copy.deepcopy(norm).double() for norm in norms]
    inputs = [
        torch.randn(32, 128, 17, 29, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
        for _ in range(min(2, num_norms + 1))
    ]
    grads = [torch.randn_like(inputs[0]) for _ in inputs]
    wide = [x.double().requires_grad_() for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]
    if num_norms:
        results = residual_batch_norm_relu(norms[0], *inputs, *norms[1:])
        shortcut = wide_norms[1](wide[1]) if num_norms == 2 else wide[1]
        expected = [(wide_norms[0](wide[0]) + shortcut).relu()] * 2
    else:
        results, expected = [batch_norm_relu(norms[0], *inputs)], [wide_norms[0](wide[0]).relu()]
    assert all(result.grad_fn.name() == "_BatchNormReLUBackward" for result in results)
    parameters, wide_parameters = ([p for norm in some for p in norm.parameters()] for some in (norms, wide_norms))
    mine = torch.autograd.grad(results, [*inputs, *parameters], grads)
    reference = torch.autograd.grad(expected, [*wide, *wide_parameters], [grad.double() for grad in grads])
    buffers, wide_buffers = ([b for norm in some for b in norm.buffers()] for some in (norms, wide_norms))
    for one, other in zip((*results, *mine, *buffers), (*expected, *reference, *wide_buffers), strict=True):
        assert (one.double() - other).norm() < bound * other.double().norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_running_statistics_of_a_network_are_those_of_pytorch(dtype, monkeypatch):
    """All of ResNet-50 after 100 batches, in fp32 to 1e-3; in bf16 as close to those of fp32 as PyTorch's are."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    device = torch.accelerator.current_accelerator()
    torch.manual_seed(1)
    fused = build_resnet([3, 4, 6, 3], 10, block="bottleneck").to(device)
    runs = {
        "fused": (fused, dtype),
        "pytorch": (copy.deepcopy(fused), dtype),
        "fp32": (copy.deepcopy(fused), torch.float32),
    }
    called = []
    monkeypatch.setattr(
        batch_norm, "_fused", lambda *args, function=batch_norm._fused: called.append(1) or function(*args)
    )
    for name, (network, run_dtype) in runs.items():
        if name == "pytorch":
            assert len(called) > 100
            monkeypatch.setattr(batch_norm, "_is_fusible", lambda *arguments: False)
        generator = torch.Generator(device).manual_seed(2)
        for _ in range(100):
            images = torch.rand(32, 3, 128, 128, generator=generator, device=device)
            with torch.autocast(device.type, run_dtype, enabled=run_dtype != torch.float32), torch.no_grad():
                network(images.contiguous(memory_format=torch.channels_last))
    norms = [[m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)] for network, _ in runs.values()]
    for mine, pytorchs, reference in zip(*norms, strict=True):
        assert mine.num_batches_tracked == reference.num_batches_tracked == 100
        errors, pytorch_errors = _statistics_errors(mine, reference), _statistics_errors(pytorchs, reference)
        for error, pytorch_error in zip(errors, pytorch_errors, strict=True):
            assert error < (1e-3 if dtype == torch.float32 else 1.5 * pytorch_error + 1e-4)


def _statistics_errors(norm, reference):
    """Errors of the means relative to the standard deviations, and of the variances relative to the variances."""
    means = (norm.running_mean - reference.running_mean) / reference.running_var.sqrt()
    variances = (norm.running_var - reference.running_var).norm() / reference.running_var.norm()
    return means.square().mean().sqrt().item(), variances.item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_unshuffled_pixels_equal_pytorchs(dtype):
    device = torch.accelerator.current_accelerator()
    mean, std = (torch.rand(1, 3, 1, 1, device=device) * 100 + 1 for _ in range(2))
    for pixels in (
        torch.randint(256, (5, 3, 61, 80), dtype=torch.uint8, device=device),
        torch.randint(256, (5, 3, 300, 300), dtype=torch.uint8, device=device)[:, :, 10:, 3:],
    ):
        result = stem._unshuffle_by_kernel(pixels, mean, std, dtype)
        expected = stem._unshuffle(pixels, mean, std, dtype)
        assert (result.float() - expected.float()).norm() < 1e-3 * expected.float().norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_max_pool_equals_pytorch(compiled):
    device = torch.accelerator.current_accelerator()
    x = torch.randn(5, 64, 75, 112, device=device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    layer = stem.MaxPool()
    pooled = torch.compile(lambda x: layer(x.relu()), fullgraph=True)(x) if compiled else layer(x.relu())
    expected = torch.nn.functional.max_pool2d(x.relu(), 3, 2, 1)
    assert torch.equal(pooled, expected)
    grad = torch.randn_like(expected)
    (given,), (wanted,) = torch.autograd.grad(pooled, x, grad), torch.autograd.grad(expected, x, grad)
    assert (given - wanted).norm() < 0.01 * wanted.norm()
