"""Attention between packed sentences, in Triton's interpreter and on a GPU, against dense softmax in float64."""

import subprocess
import sys

import pytest
import torch

ATTENTION = """
import itertools, sys, torch
from timetrial.workloads.transformer import kernels
kernels.triton_available = lambda x: True
torch.set_default_device(sys.argv[1])
D = 16

def make_layout(lengths):
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    sentences = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return sentences, cu_seqlens

def reference(q, k, v, q_sentences, k_sentences, causal, kept):
    out = torch.zeros_like(q)
    for head in range(q.shape[1]):
        score = q[:, head] @ k[:, head].T / D**0.5
        mask = q_sentences[:, None] == k_sentences[None]
        if causal:
            mask &= torch.arange(len(q))[:, None] >= torch.arange(len(k))[None]
        weight = score.masked_fill(~mask, -torch.inf).softmax(1)
        out[:, head] = (weight * kept[head]) @ v[:, head]
    return out

torch.manual_seed(1)
masks = []
for lengths, sources, causal, dropout, stock_random, *heads in (
    ([5, 70, 3, 1, 60, 0, 0], None, True, 0.0, False),
    ([5, 70, 3, 1, 60, 0, 0], None, False, 0.3, False),
    ([5, 70, 3, 1, 60, 0, 0], None, False, 0.3, True),
    ([65, 63, 2], None, True, 0.3, False),
    ([5, 70, 3, 1], [9, 2, 130, 7], False, 0.0, True),
    ([5, 70, 3, 1], [9, 2, 130, 7], False, 0.3, True),
    ([5, 64, 3, 1, 33, 32, 0, 0], None, True, 0.0, False),
    ([5, 64, 3, 1, 33, 32, 0, 0], None, False, 0.3, True),
    ([64, 64, 2], None, True, 0.3, False),
    ([5, 40, 3, 1, 0], [9, 2, 64, 32, 0], False, 0.0, True),
    ([5, 40, 3, 1, 0, 0], [9, 2, 64, 32, 0, 6], False, 0.3, False),
    ([5, 33, 0, 32], None, True, 0.0, False, 16),  # in two groups of eight
    ([5, 33, 0, 32], [4, 32, 0, 40], False, 0.3, False, 12),  # in three of four
):
    H = heads[0] if heads else 2
    options = {"causal": causal, "dropout": dropout, "stock_random": stock_random}
    options["max_seqlen"] = max(lengths + (sources or []))
    q_sentences, cu_seqlens_q = make_layout(lengths)
    k_sentences, cu_seqlens_k = make_layout(sources or lengths)
    layout = (q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k)
    q_or_qkv = torch.randn(len(q_sentences), 1 if sources else 3, H, D)
    kv = torch.randn(len(k_sentences), 2, H, D) if sources else None
    grad_out = torch.randn(len(q_sentences), H, D)
    kept = torch.ones(H, len(q_sentences), len(k_sentences))
    if dropout:  # find the dropped weights with unit vectors as values, D columns at a time
        probe = q_or_qkv.clone() if kv is None else kv.clone()
        for start in range(0, len(k_sentences), D):
            probe[:, -1] = 0.0
            for column in range(start, min(start + D, len(k_sentences))):
                probe[column, -1, :, column - start] = 1.0
            torch.manual_seed(7)
            inputs = (probe, None) if kv is None else (q_or_qkv, probe)
            out = kernels.attention(*inputs, *layout, **options)
            for column in range(start, min(start + D, len(k_sentences))):
                kept[:, :, column] = (out[:, :, column - start] != 0).T / (1 - dropout)
        of_heads = [kept[h][q_sentences[:, None] == k_sentences[None]] for h in range(H)]
        if not causal:
            assert all(abs((weights == 0).double().mean() - dropout) < 0.05 for weights in of_heads), of_heads
        assert not torch.equal(kept[0], kept[1])
        masks.append(kept)
    leaves = [x.clone().requires_grad_() for x in (q_or_qkv, kv) if x is not None]
    wide = [x.double().requires_grad_() for x in (q_or_qkv, kv) if x is not None]
    torch.manual_seed(7)
    inputs = (leaves[0], leaves[1] if sources else None)
    out = kernels.attention(*inputs, *layout, **options)
    (out * grad_out).sum().backward()
    k, v = (wide[-1][:, -2], wide[-1][:, -1])
    expected = reference(wide[0][:, 0], k, v, q_sentences, k_sentences, causal, kept)
    (expected * grad_out).sum().backward()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    for leaf, expected_leaf in zip(leaves, wide):
        torch.testing.assert_close(leaf.grad.double(), expected_leaf.grad, rtol=1e-3, atol=1e-5)
assert not torch.equal(masks[0], masks[1])  # two generators
"""


def test_outputs_and_gradients_equal_dense_attention(interpret):
    """With dropout by the hash and by Triton's generator."""
    interpret(ATTENTION, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_outputs_and_gradients_on_the_gpu_equal_dense_attention():
    done = subprocess.run([sys.executable, "-P", "-c", ATTENTION, "cuda"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


FLOPS = """
import itertools, torch
from torch.utils.flop_counter import FlopCounterMode
from timetrial.workloads.transformer import kernels
kernels.triton_available = lambda x: True
lengths, H, D = [5, 17, 3], 2, 16
cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
sentences = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
qkv = torch.randn(25, 3, H, D, requires_grad=True)
with FlopCounterMode(display=False) as counter:
    layout = (sentences, sentences, cu_seqlens, cu_seqlens)
    kernels.attention(qkv, None, *layout, max_seqlen=17, causal=True, dropout=0.0, stock_random=True).sum().backward()
pairs = 25 + 17 * 17 + 9
assert counter.get_total_flops() == 7 * 2 * pairs * H * D, counter.get_total_flops()
"""


def test_flop_counter_counts_attention(interpret):
    interpret(FLOPS)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = sys.modules["triton.language"] = None
from timetrial.workloads.transformer import kernels
assert kernels.triton is None
"""


def test_kernels_import_without_triton():
    subprocess.run([sys.executable, "-P", "-c", WITHOUT_TRITON], check=True)
