"""Additive attention's kernel by Triton's interpreter, against autograd in float64."""

INTERPRETED = """
import torch
from timetrial.workloads.gnmt.kernels import additive_scores
torch.manual_seed(1)
for count, queries, keys in ((2, 5, 3), (1, 18, 21), (3, 1, 17), (1, 130, 4)):
    leaves = [torch.randn(count, queries, 32), torch.randn(count, keys, 32), torch.randn(32)]
    given = torch.randn(count, queries, keys)
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    found = additive_scores(*ours)
    (found * given).sum().backward()
    expected = torch.tanh(wide[0][:, :, None] + wide[1][:, None]) @ wide[2]
    (expected * given).sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(ours, wide):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-5)
"""


def test_scores_and_gradients_are_the_formulas(interpret):
    interpret(INTERPRETED)
