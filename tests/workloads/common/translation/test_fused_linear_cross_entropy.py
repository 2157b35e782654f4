"""The loss over a vocabulary against autograd in float64, and its kernel by Triton's interpreter."""

import pytest
import torch

from timetrial.workloads.common.translation import fused_linear_cross_entropy as module
from timetrial.workloads.common.translation.fused_linear_cross_entropy import vocabulary_loss

INTERPRETED = """
import torch
from timetrial.workloads.common.nn.triton_support import cross_entropy_
torch.manual_seed(1)
for words in (37, 5000):
    logits = 3 * torch.randn(5, words)
    logits[2] += 80.0
    labels = torch.tensor([0, words - 1, 7, -1, 20])
    spread = 0.1 / words
    wide = logits.double().requires_grad_()
    logs = wide.log_softmax(1)
    said = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    expected = -(0.9 * said + spread * logs.sum(1)) * (labels >= 0)
    expected.sum().backward()
    losses = cross_entropy_(logits, labels, 0.9, spread, 0.25)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(logits.double(), wide.grad / 4, rtol=1e-4, atol=1e-6)
"""


def by_autograd(hidden, weight, bias, labels, lead, spread):
    logs = torch.nn.functional.linear(hidden, weight, bias).log_softmax(1)
    kept = labels >= 0
    said = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return -((lead * said + spread * logs.sum(1)) * kept).sum()


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("at_once", [1 << 28, 50])
def test_loss_and_gradients_are_autograds(monkeypatch, biased, at_once):
    """In one piece and in many; the incoming gradient is not 1."""
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    torch.manual_seed(1)
    words, spread = 13, 0.1 / 13
    hidden, weight, bias = (torch.randn(*size, dtype=torch.float64) for size in ((9, 4), (words, 4), (words,)))
    labels = torch.randint(words, (9,))
    labels[3] = -1
    found = []
    for function in (lambda *x: vocabulary_loss(*x, labels, lead=1 - 0.1, spread=spread), None):
        leaves = [leaf.clone().requires_grad_() for leaf in (hidden, weight, bias)]
        inputs = (*leaves[:2], leaves[2] if biased else None)
        loss = function(*inputs) if function else by_autograd(*inputs, labels, 0.9, spread)
        (3.0 * loss).backward()
        found.append([loss, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(dtype):
    torch.manual_seed(1)
    words = 300
    hidden, weight = torch.randn(40, 16, requires_grad=True), torch.randn(words, 16, requires_grad=True)
    labels = torch.randint(words, (40,))
    with torch.autocast("cpu", dtype):
        loss = vocabulary_loss(hidden, weight, None, labels, lead=0.9, spread=0.1 / words)
    loss.backward()
    wide = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight)]
    expected = by_autograd(*wide, None, labels, 0.9, 0.1 / words)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=3e-3)
    for ours, theirs in zip((hidden, weight), wide, strict=True):
        assert (ours.grad - theirs.grad).norm() < 0.02 * theirs.grad.norm()


def test_the_kernel_makes_losses_and_gradients(interpret):
    interpret(INTERPRETED)
