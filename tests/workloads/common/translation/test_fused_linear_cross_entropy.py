"""The fused cross entropy against autograd in float64, and its kernel in Triton's interpreter."""

import pytest
import torch

from timetrial.workloads.common.translation import fused_linear_cross_entropy as module
from timetrial.workloads.common.translation.fused_linear_cross_entropy import fused_linear_cross_entropy

INTERPRETED = """
import torch
from timetrial.workloads.common.translation.kernels import cross_entropy_
torch.manual_seed(1)
for vocab_size, smoothing in ((37, 0.1), (9001, 0.1), (9001, 0.0)):
    logits = 3 * torch.randn(5, vocab_size)
    logits[2] += 80.0
    labels = torch.tensor([0, vocab_size - 1, 7, -1, 20])
    smoothing_weight = smoothing / vocab_size
    wide = logits.double().requires_grad_()
    log_probabilities = wide.log_softmax(1)
    of_label = log_probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    expected = -((1 - smoothing) * of_label + smoothing_weight * log_probabilities.sum(1)) * (labels >= 0)
    expected.sum().backward()
    losses = cross_entropy_(logits, labels, 1 - smoothing, smoothing_weight, 0.25)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(logits.double(), wide.grad / 4, rtol=1e-4, atol=1e-6)
"""

HUGE = """
import torch
from huge_tensors import HugeTensor, run_program
from timetrial.workloads.common.translation import kernels
rows, vocab_size = 70_000, 33_708  # more than 2**31 logits
logits = HugeTensor(torch.bfloat16, rows * vocab_size)
labels, losses = HugeTensor(torch.int64, rows), HugeTensor(torch.float32, rows)
run_program(
    kernels._cross_entropy, (rows - 1, 0, 0), (rows, 1, 1), logits_ptr=logits, labels_ptr=labels, losses_ptr=losses,
    vocab_size=vocab_size, target_weight=0.9, smoothing_weight=0.1, gradient_scale=1.0, BLOCK=kernels._BLOCK,
)
assert (logits.first, logits.last) == (logits.size - vocab_size, logits.size - 1)
assert labels.last == losses.last == rows - 1
"""


def reference(hidden, weight, bias, labels, target_weight, smoothing_weight):
    log_probabilities = torch.nn.functional.linear(hidden, weight, bias).log_softmax(1)
    valid = labels >= 0
    of_label = log_probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return -((target_weight * of_label + smoothing_weight * log_probabilities.sum(1)) * valid).sum()


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("logits_per_chunk", [1 << 28, 50])
def test_loss_and_gradients_equal_autograd(monkeypatch, biased, logits_per_chunk):
    """In one chunk and in many, with an incoming gradient other than 1."""
    monkeypatch.setattr(module, "_LOGITS_PER_CHUNK", logits_per_chunk)
    torch.manual_seed(1)
    vocab_size, smoothing_weight = 13, 0.1 / 13
    sizes = ((9, 4), (vocab_size, 4), (vocab_size,))
    hidden, weight, bias = (torch.randn(*size, dtype=torch.float64) for size in sizes)
    labels = torch.randint(vocab_size, (9,))
    labels[3] = -1

    def fused(*inputs):
        return fused_linear_cross_entropy(*inputs, labels, target_weight=1 - 0.1, smoothing_weight=smoothing_weight)

    results = []
    for function in (fused, lambda *inputs: reference(*inputs, labels, 0.9, smoothing_weight)):
        leaves = [leaf.clone().requires_grad_() for leaf in (hidden, weight, bias)]
        loss = function(*leaves[:2], leaves[2] if biased else None)
        (3.0 * loss).backward()
        results.append([loss, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows_per_chunk", [1, 4, 9, 100])
def test_loss_without_gradients_equals_the_reference(monkeypatch, biased, rows_per_chunk):
    """With no row left in the last chunk, with some, and with ignored labels at both ends and in between."""
    torch.manual_seed(1)
    vocab_size, smoothing_weight = 13, 0.1 / 13
    monkeypatch.setattr(module, "_LOGITS_PER_CHUNK", rows_per_chunk * vocab_size)
    hidden, weight = torch.randn(9, 4, dtype=torch.float64), torch.randn(vocab_size, 4, dtype=torch.float64)
    bias = torch.randn(vocab_size, dtype=torch.float64) if biased else None
    labels = torch.randint(vocab_size, (9,))
    labels[[0, 3, 4, 8]] = -1
    inputs = [hidden.clone(), weight.clone(), None if bias is None else bias.clone(), labels.clone()]
    with torch.no_grad():
        loss = fused_linear_cross_entropy(*inputs, target_weight=0.9, smoothing_weight=smoothing_weight)
    expected = reference(hidden, weight, bias, labels, 0.9, smoothing_weight)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    unchanged = zip(inputs, (hidden, weight, bias, labels), strict=True)
    assert all(after is before is None or torch.equal(after, before) for after, before in unchanged)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(dtype):
    torch.manual_seed(1)
    vocab_size = 300
    hidden, weight = torch.randn(40, 16, requires_grad=True), torch.randn(vocab_size, 16, requires_grad=True)
    labels = torch.randint(vocab_size, (40,))
    with torch.autocast("cpu", dtype):
        loss = fused_linear_cross_entropy(
            hidden, weight, None, labels, target_weight=0.9, smoothing_weight=0.1 / vocab_size
        )
    loss.backward()
    wide = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight)]
    expected = reference(*wide, None, labels, 0.9, 0.1 / vocab_size)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=3e-3)
    for result, expected_leaf in zip((hidden, weight), wide, strict=True):
        assert (result.grad - expected_leaf.grad).norm() < 0.02 * expected_leaf.grad.norm()


def test_kernel_losses_and_gradients(interpret):
    interpret(INTERPRETED)


def test_kernel_of_the_last_row_beyond_2_to_31_logits_reaches_its_own(interpret):
    interpret(HUGE)
