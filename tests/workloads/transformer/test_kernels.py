"""Attention between packed sentences, in Triton's interpreter and on a GPU, against dense softmax in float64."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ORACLE = (Path(__file__).parents[1] / "common/nn/philox.py").read_text()

ATTENTION = (
    ORACLE
    + """
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

seeds, draw_seed = [], kernels.draw_seed
def recorded_seed(device):
    seeds.append(draw_seed(device))
    return seeds[-1]

kernels.draw_seed = recorded_seed
torch.manual_seed(1)
for lengths, sources, causal, dropout, *heads in (
    ([5, 70, 3, 1, 60, 0, 0], None, True, 0.0),
    ([5, 70, 3, 1, 60, 0, 0], None, False, 0.3),
    ([65, 63, 2], None, True, 0.3),
    ([5, 70, 3, 1], [9, 2, 130, 7], False, 0.0),
    ([5, 70, 3, 1], [9, 2, 130, 7], False, 0.3),
    ([5, 64, 3, 1, 33, 32, 0, 0], None, True, 0.0),
    ([5, 64, 3, 1, 33, 32, 0, 0], None, False, 0.3),
    ([64, 64, 2], None, True, 0.3),
    ([5, 40, 3, 1, 0], [9, 2, 64, 32, 0], False, 0.0),
    ([5, 40, 3, 1, 0, 0], [9, 2, 64, 32, 0, 6], False, 0.3),
    ([5, 33, 0, 32], None, True, 0.0, 16),  # in two groups of eight
    ([5, 33, 0, 32], [4, 32, 0, 40], False, 0.3, 12),  # in three of four
):
    H = heads[0] if heads else 2
    options = {"causal": causal, "dropout": dropout}
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
                kept[:, :, column] = (out[:, :, column - start] != 0).T
        of_heads = [kept[h][q_sentences[:, None] == k_sentences[None]] for h in range(H)]
        if not causal:
            assert all(abs((weights == 0).double().mean() - dropout) < 0.05 for weights in of_heads), of_heads
        assert not torch.equal(kept[0], kept[1])
        seed, scale = int(seeds[-1]), 2**16 / (2**16 - round(dropout * 2**16))
        rows, columns = np.arange(len(q_sentences))[:, None], np.arange(len(k_sentences))
        drawn = np.concatenate([eight_masks(seed, dropout, rows, columns, group) for group in range(-(-H // 8))])[:H]
        kept = torch.where(kept > 0, scale, 0.0)
        pairs = q_sentences[:, None] == k_sentences
        if causal:
            pairs &= torch.arange(len(q_sentences))[:, None] >= torch.arange(len(k_sentences))
        drawn = torch.from_numpy(drawn).to(kept.device)
        assert torch.equal(kept[:, pairs] > 0, drawn[:, pairs])
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
"""
)


def test_outputs_and_gradients_equal_dense_attention(interpret):
    """With dropout by the masks of Philox in NumPy."""
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
    kernels.attention(qkv, None, *layout, max_seqlen=17, causal=True, dropout=0.0).sum().backward()
pairs = 25 + 17 * 17 + 9
assert counter.get_total_flops() == 7 * 2 * pairs * H * D, counter.get_total_flops()
"""


def test_flop_counter_counts_attention(interpret):
    interpret(FLOPS)


FAR_TOKENS = """
import math, mmap, torch
from timetrial.workloads.transformer import kernels, sentence_kernels, tile_kernels
H = D = 16
T, FAR = 12, 2**27  # FAR * H is 2**31

def reserve(*shape, dtype=torch.float32):  # address space: a page takes memory once it is written
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags), dtype=dtype).view(shape)

def place(x, first):
    placed = reserve(first + len(x), *x.shape[1:], dtype=x.dtype)
    placed[first:] = x
    return placed

def cu_seqlens(first):
    return first + torch.tensor([0, 5, T], dtype=torch.int32)

def attend_to_sentences(first):
    inputs, out, dqkv = place(qkv, first), reserve(first + T, H, D), reserve(first + T, 3, H, D)
    arguments = kernels._shared_arguments(inputs, inputs, seed, False, 0.0)
    arguments |= {"cu_seqlens_q_ptr": cu_seqlens(first), "cu_seqlens_k_ptr": cu_seqlens(first)}
    arguments |= {"HEADS": 8, "SHORTER": 0, "BLOCK": 16}
    sentence_kernels.forward[(4,)](out_ptr=out, **arguments)
    grads = {"dq_ptr": dqkv, "dk_ptr": dqkv[:, 1], "dv_ptr": dqkv[:, 2]}
    sentence_kernels.backward[(4,)](dout_ptr=place(dout, first), scale=0.25, **grads, **arguments)
    return out[first:], dqkv[first:]

def attend_to_far_keys(first):
    out, dq, new_lse, new_delta = reserve(T, H, D), reserve(T, 1, H, D), reserve(T, H), reserve(T, H)
    arguments = kernels._shared_arguments(q, place(kv, first), seed, False, 0.0)
    arguments |= {"q_sentences_ptr": sentences, "k_sentences_ptr": place(sentences, first)}
    arguments |= {"cu_seqlens_k_ptr": cu_seqlens(first), "num_tokens": T, "out_ptr": out, "lse_ptr": new_lse}
    arguments |= {"TILE": 16, "STEP": 16}
    tile_kernels.forward[(1, H)](**arguments)
    tile_kernels.backward_q[(1, H)](dout_ptr=dout, delta_ptr=new_delta, dq_ptr=dq, scale=0.25, **arguments)
    return out, dq

def attend_from_far_queries(first):
    dkv = reserve(T, 2, H, D)
    arguments = kernels._shared_arguments(place(q, first), kv, seed, False, 0.0)
    arguments |= {"q_sentences_ptr": place(sentences, first), "k_sentences_ptr": sentences}
    arguments |= {"cu_seqlens_q_ptr": cu_seqlens(first), "num_tokens": T, "TILE": 16, "STEP": 16, "scale": 0.25}
    statistics = {"lse_ptr": place(lse, first), "delta_ptr": place(delta, first)}
    grads = {"dk_ptr": dkv[:, 0], "dv_ptr": dkv[:, 1]}
    tile_kernels.backward_kv[(1, H)](dout_ptr=place(dout, first), **statistics, **grads, **arguments)
    return [dkv]

torch.manual_seed(1)
sentences = torch.repeat_interleave(torch.arange(2), torch.tensor([5, 7]))
qkv, q, kv, dout = (torch.randn(T, parts, H, D) for parts in (3, 1, 2, 1))
lse, delta, seed = torch.randn(T, H), torch.randn(T, H), torch.zeros(1, dtype=torch.int32)
for attend in (attend_to_sentences, attend_to_far_keys, attend_from_far_queries):
    for near, far in zip(attend(0), attend(FAR)):
        assert near.all() and torch.equal(near, far), attend
"""


def test_offsets_of_many_tokens_are_64_bits_wide(interpret):
    interpret(FAR_TOKENS)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = sys.modules["triton.language"] = None
from timetrial.workloads.common.nn.triton_support import has_triton
from timetrial.workloads.transformer import kernels, sentence_kernels, tile_kernels
assert not has_triton()
"""


def test_kernels_import_without_triton():
    subprocess.run([sys.executable, "-P", "-c", WITHOUT_TRITON], check=True)
