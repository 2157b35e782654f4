"""GPT's kernels on a GPU."""

import pytest
import torch

from timetrial.workloads.gpt import add_layer_norm, fused_linear
from timetrial.workloads.gpt.model import GPT

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("bias", [False, True])
def test_gpts_kernels_equal_pytorchs_operations(dtype, bound, bias, monkeypatch):
    """Against PyTorch in fp32, of which bf16 differs by its rounding."""
    device = torch.accelerator.current_accelerator()
    torch.manual_seed(1)
    model = GPT(512, 256, 768, 12, 3, dropout=0.0, bias=bias).to(device)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    windows = torch.randint(512, (8, 257), device=device)
    losses, gradients = [], []
    for fused in (True, False):
        if not fused:
            for module in (add_layer_norm, fused_linear):
                monkeypatch.setattr(module, "triton_available", lambda tensor: False)
        with torch.autocast(device.type, dtype=dtype, enabled=fused and dtype != torch.float32):
            loss = model(windows)
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert losses[0] == pytest.approx(losses[1], rel=bound / 10)
    for (name, _), mine, other in zip(model.named_parameters(), *gradients, strict=True):
        assert (mine - other).norm() < bound * other.norm(), name
