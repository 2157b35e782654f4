"""Attention between packed sentences by Triton's interpreter, against softmax sentence by sentence in float64."""

INTERPRETED = """
import itertools, torch
from timetrial.workloads.transformer import kernels
kernels.triton_available = lambda x: True
H, D = 2, 16

def lie(lengths):
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    own = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return own, bounds

def expected(q, k, v, own_q, own_k, causal, kept):
    out = torch.zeros_like(q)
    for head in range(H):
        score = q[:, head] @ k[:, head].T / D**0.5
        counts = own_q[:, None] == own_k[None]
        if causal:
            counts &= torch.arange(len(q))[:, None] >= torch.arange(len(k))[None]
        weight = score.masked_fill(~counts, -torch.inf).softmax(1)
        out[:, head] = (weight * kept[head]) @ v[:, head]
    return out

torch.manual_seed(1)
for lengths, sources, causal, dropout in (
    ([5, 70, 3, 1, 60, 0, 0], None, True, 0.0),
    ([5, 70, 3, 1, 60, 0, 0], None, False, 0.3),
    ([64, 64, 2], None, True, 0.3),
    ([5, 70, 3, 1], [9, 2, 130, 7], False, 0.0),
    ([5, 70, 3, 1], [9, 2, 130, 7], False, 0.3),
):
    own_q, bounds_q = lie(lengths)
    own_k, bounds_k = lie(sources or lengths)
    own = torch.randn(len(own_q), 1 if sources else 3, H, D)
    seen = torch.randn(len(own_k), 2, H, D) if sources else None
    given = torch.randn(len(own_q), H, D)
    kept = torch.ones(H, len(own_q), len(own_k))
    if dropout:  # which weights are dropped: those of an attention whose values are unit vectors, one column at a time
        probe = own.clone() if seen is None else seen.clone()
        for start in range(0, len(own_k), D):
            probe[:, -1] = 0.0
            for place in range(start, min(start + D, len(own_k))):
                probe[place, -1, :, place - start] = 1.0
            torch.manual_seed(7)
            sides = (probe, None) if seen is None else (own, probe)
            found = kernels.attention(*sides, own_q, own_k, bounds_q, bounds_k, causal=causal, dropout=dropout)
            for place in range(start, min(start + D, len(own_k))):
                kept[:, :, place] = (found[:, :, place - start] != 0).T / (1 - dropout)
        share = [kept[h][own_q[:, None] == own_k[None]] for h in range(H)]
        if not causal:
            assert all(abs((part == 0).double().mean() - dropout) < 0.05 for part in share), share
        assert not torch.equal(kept[0], kept[1])
    leaves = [x.clone().requires_grad_() for x in (own, seen) if x is not None]
    wide = [x.double().requires_grad_() for x in (own, seen) if x is not None]
    torch.manual_seed(7)
    sides = (leaves[0], leaves[1] if sources else None)
    found = kernels.attention(*sides, own_q, own_k, bounds_q, bounds_k, causal=causal, dropout=dropout)
    (found * given).sum().backward()
    k, v = (wide[-1][:, -2], wide[-1][:, -1])
    right = expected(wide[0][:, 0], k, v, own_q, own_k, causal, kept)
    (right * given).sum().backward()
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)
    for one, other in zip(leaves, wide):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-5)
"""


def test_attention_and_its_gradients_are_the_formulas(interpret):
    interpret(INTERPRETED)


COUNTED = """
import itertools, torch
from torch.utils.flop_counter import FlopCounterMode
from timetrial.workloads.transformer import kernels
kernels.triton_available = lambda x: True
lengths, H, D = [5, 17, 3], 2, 16
bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
places = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
own = torch.randn(25, 3, H, D, requires_grad=True)
with FlopCounterMode(display=False) as counter:
    kernels.attention(own, None, places, places, bounds, bounds, causal=True, dropout=0.0).sum().backward()
pairs = 25 + 17 * 17 + 9
assert counter.get_total_flops() == 7 * 2 * pairs * H * D, counter.get_total_flops()
"""


def test_torch_counts_its_products(interpret):
    interpret(COUNTED)
