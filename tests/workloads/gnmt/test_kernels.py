"""The kernels of additive attention in Triton's interpreter, against autograd in float64, and on huge batches."""

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

HUGE = """
import torch, triton
from huge_tensors import HugeTensor, run_program
from timetrial.workloads.gnmt import kernels
units, valid = 1100, 3  # tokens of the other side that a tile attends to
for count, queries, keys in ((2_000_000, 40, 48), (2, 65_600, 65_536), (2, 3, 1 << 30), (2, 1 << 30, 3)):
    chunks = triton.cdiv(units, 1024)
    query, key, dquery, dkey = (
        HugeTensor(torch.bfloat16, count * length * units) for length in (queries, keys, queries, keys)
    )
    scores = HugeTensor(torch.float32, chunks * count * queries * keys)
    sides = dict(num_queries=queries, num_keys=keys, num_units=units)
    full, short = torch.full((count,), 1 << 30), torch.full((count,), valid)
    v = torch.zeros(units)
    tiles = triton.cdiv(queries, 4)
    run_program(
        kernels._scores_forward, (count - 1, tiles - 1, chunks - 1), (count, tiles, chunks), query_ptr=query,
        key_ptr=key, v_ptr=v, scores_ptr=scores, query_lengths_ptr=full, key_lengths_ptr=short, BLOCK_Q=4, BLOCK_U=1024,
        **sides,
    )
    assert query.last == query.size - 1
    assert key.last == key.size - 1 - (keys - valid) * units
    assert scores.last == scores.size - 1 - (keys - valid)
    shared = dict(v_ptr=v, x_lengths_ptr=full, other_lengths_ptr=short, num_units=units, BLOCK_X=8, BLOCK_U=128)
    chunks = triton.cdiv(units, 128)
    for x, other, dx, rows, others, strides, unreached in (
        (query, key, dquery, queries, keys, (keys, 1), keys - valid),
        (key, query, dkey, keys, queries, (1, keys), (queries - valid) * keys),
    ):
        tiles = triton.cdiv(rows, 8)
        dscores = HugeTensor(torch.float32, count * queries * keys)
        dv_parts = HugeTensor(torch.float32, count * tiles * units)
        other.last = -1
        run_program(
            kernels._scores_backward, (count - 1, tiles - 1, chunks - 1), (count, tiles, chunks), x_ptr=x,
            other_ptr=other, dscores_ptr=dscores, dx_ptr=dx, dv_parts_ptr=dv_parts, num_rows=rows, num_others=others,
            dscores_row_stride=strides[0], dscores_other_stride=strides[1], HAS_DV=True, **shared,
        )
        assert dx.last == dx.size - 1
        assert dv_parts.last == dv_parts.size - 1
        assert other.last == other.size - 1 - (others - valid) * units
        assert dscores.last == dscores.size - 1 - unreached
"""


def test_scores_and_gradients_equal_autograd(interpret):
    interpret(INTERPRETED)


def test_last_program_beyond_2_to_31_values_reaches_its_own(interpret):
    """In a batch of many sentences, of long ones, and of many tokens on one side only."""
    interpret(HUGE)
