"""The kernels of additive attention in Triton's interpreter, against autograd in float64."""

INTERPRETED = """
import torch
from timetrial.workloads.gnmt.kernels import additive_scores
torch.manual_seed(1)
for count, queries, keys, units in ((2, 5, 3, 32), (1, 18, 21, 20), (3, 1, 17, 130), (1, 2, 3, 1100), (1, 130, 4, 8)):
    leaves = [torch.randn(count, queries, units) * 4, torch.randn(count, keys, units), torch.randn(units)]
    query_lengths, key_lengths = (torch.randint(1, limit + 1, (count,)) for limit in (queries, keys))
    valid = torch.arange(queries)[:, None] < query_lengths[:, None, None]
    valid = valid & (torch.arange(keys) < key_lengths[:, None, None])
    grad_scores = torch.randn(count, queries, keys) * valid
    inputs = [leaf.clone().requires_grad_() for leaf in leaves]
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    scores = additive_scores(*inputs, query_lengths, key_lengths)
    assert scores.isfinite().all()
    (scores * grad_scores).sum().backward()
    expected = torch.tanh(wide[0][:, :, None] + wide[1][:, None]) @ wide[2]
    (expected * grad_scores).sum().backward()
    torch.testing.assert_close(scores.double()[valid], expected[valid], rtol=1e-4, atol=5e-5)
    for leaf, expected_leaf in zip(inputs, wide):
        torch.testing.assert_close(leaf.grad.double(), expected_leaf.grad, rtol=1e-4, atol=5e-5)
"""


def test_scores_and_gradients_equal_autograd(interpret):
    interpret(INTERPRETED)
