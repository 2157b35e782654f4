"""Additive attention's kernel by Triton's interpreter, against autograd in float64."""

INTERPRETED = """
import torch
from timetrial.workloads.gnmt.kernels import additive_scores
torch.manual_seed(1)
for count, queries, keys, units in ((2, 5, 3, 32), (1, 18, 21, 20), (3, 1, 17, 130), (1, 2, 3, 1100), (1, 130, 4, 8)):
    leaves = [torch.randn(count, queries, units) * 4, torch.randn(count, keys, units), torch.randn(units)]
    query_lengths, key_lengths = (torch.randint(1, most + 1, (count,)) for most in (queries, keys))
    exists = torch.arange(queries)[:, None] < query_lengths[:, None, None]
    exists = exists & (torch.arange(keys) < key_lengths[:, None, None])
    given = torch.randn(count, queries, keys) * exists
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    found = additive_scores(*ours, query_lengths, key_lengths)
    assert found.isfinite().all()
    (found * given).sum().backward()
    expected = torch.tanh(wide[0][:, :, None] + wide[1][:, None]) @ wide[2]
    (expected * given).sum().backward()
    torch.testing.assert_close(found.double()[exists], expected[exists], rtol=1e-4, atol=5e-5)
    for one, other in zip(ours, wide):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=5e-5)
"""


def test_scores_and_gradients_are_the_formulas(interpret):
    interpret(INTERPRETED)
