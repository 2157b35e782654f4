"""Attention between packed sentences by Triton kernels.

If no sentence can be longer than 64 tokens, `sentence_kernels.py` takes whole sentences at once, otherwise
`tile_kernels.py` tiles that cover several. Every sum is kept in fp32. Shapes: T and S query and key tokens, H heads,
D head size, N sentences.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..common.nn.dropout import draw_seed, drop_threshold, keep_scale
from ..common.nn.operators import operator
from ..common.nn.triton_support import triton, triton_available
from . import sentence_kernels, tile_kernels

__all__ = ["attention", "is_supported"]

# Of `tile_kernels.py`: tile of a kernel's own side, step over the other side, warps, stages. The fastest of 24 on an
# H200 (PERFORMANCE.md).
_FORWARD_TILES = {"TILE": 64, "STEP": 32, "num_warps": 4, "num_stages": 1}
_BACKWARD_TILES = {"TILE": 32, "STEP": 16, "num_warps": 2, "num_stages": 2}
# Of `sentence_kernels.py`, one for sentences of at most 32 tokens on their longer side and one for the others. The
# fastest of ten on an H100.
_SENTENCES = ({"BLOCK": 32, "num_warps": 2, "num_stages": 2}, {"BLOCK": 64, "num_warps": 4, "num_stages": 2})
_HEADS = 8  # of a sentence per program
_LOG2E = 1.4426950408889634


def is_supported(query: Tensor) -> bool:
    """Return whether the kernels can run on the device of `query` [..., D] and support its dtype and head size."""
    return triton_available(query) and query.shape[-1] in (16, 32, 64, 128)


def attention(
    q_or_qkv: Tensor,
    kv: Tensor | None,
    q_sentences: Tensor,
    k_sentences: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen: int,
    causal: bool,
    dropout: float,
) -> Tensor:
    """Return dropout(softmax(Q K^T / sqrt(D))) V within sentences (Vaswani et al. 2017, equation 1): [T, H, D].

    For self-attention `q_or_qkv` [T, 3, H, D] holds queries, keys and values, and `kv` is None. For cross-attention it
    holds the queries [T, 1, H, D], and `kv` [S, 2, H, D] the keys and values. Both are float32, float16 or bfloat16,
    and so is the result. `q_sentences` int64 [T] and `k_sentences` int64 [S] are each token's sentence; `cu_seqlens_q`
    and `cu_seqlens_k` int32 [N + 1] are the cumulative lengths, none of more than `max_seqlen` tokens. The sentence of
    every query must have keys. `dropout` is rounded to a multiple of 2^-16.
    """
    q_or_qkv = q_or_qkv.contiguous()
    kv = q_or_qkv.detach() if kv is None else kv.contiguous()
    layout = (q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k)
    return _attention(q_or_qkv, kv, *layout, draw_seed(q_or_qkv.device), max_seqlen, causal, dropout)[0]


@operator("timetrial::packed_attention")
def _attention(
    q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    seed: Tensor, max_seqlen: int, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the outputs [T, H, D] and, of tiles, the base-2 log-sum-exp of each row of scores, float32 [T, H]."""
    tokens, _, heads, head_size = q_or_qkv.shape
    out = q_or_qkv.new_empty(tokens, heads, head_size)
    arguments = _shared_arguments(q_or_qkv, kv, seed, causal, dropout) | {"out_ptr": out}
    if _has_whole_sentences(max_seqlen):
        for grid, options in _sentence_launches(cu_seqlens_q, heads):
            sentence_kernels.forward[grid](
                cu_seqlens_q_ptr=cu_seqlens_q, cu_seqlens_k_ptr=cu_seqlens_k, **arguments, **options
            )
        return out, q_or_qkv.new_empty(0)
    lse = q_or_qkv.new_empty(tokens, heads, dtype=torch.float32)
    tile_kernels.forward[(triton.cdiv(tokens, _FORWARD_TILES["TILE"]), heads)](
        lse_ptr=lse,
        q_sentences_ptr=q_sentences,
        k_sentences_ptr=k_sentences,
        cu_seqlens_k_ptr=cu_seqlens_k,
        num_tokens=tokens,
        **arguments,
        **_FORWARD_TILES,
    )
    return out, lse


@torch.library.register_fake("timetrial::packed_attention")
def _(
    q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    seed: Tensor, max_seqlen: int, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, _, heads, head_size = q_or_qkv.shape
    out = q_or_qkv.new_empty(tokens, heads, head_size)
    if _has_whole_sentences(max_seqlen):
        return out, q_or_qkv.new_empty(0)
    return out, q_or_qkv.new_empty(tokens, heads, dtype=torch.float32)


@operator("timetrial::packed_attention_backward")
def _attention_backward(
    dout: Tensor, out: Tensor, lse: Tensor, q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seed: Tensor, max_seqlen: int, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of `q_or_qkv` and of `kv`; the latter is empty for self-attention.

    With weights P = softmax(S), P' = dropout(P) and dP = dropout'(dO V^T), where dropout' drops and scales the same
    elements: dV = P'^T dO, dS = P (dP - rowsum(P dP)) / sqrt(D), dQ = dS K and dK = dS^T Q. P is computed again.
    """
    tokens, parts, heads, head_size = q_or_qkv.shape
    is_self_attention = parts == 3  # queries, keys and values are in one tensor
    dq_or_dqkv = torch.empty_like(q_or_qkv)
    dkv = dq_or_dqkv if is_self_attention else torch.empty_like(kv)
    arguments = _shared_arguments(q_or_qkv, kv, seed, causal, dropout)
    arguments |= {"dout_ptr": dout, "scale": head_size**-0.5}
    if _has_whole_sentences(max_seqlen):
        for grid, options in _sentence_launches(cu_seqlens_q, heads):
            sentence_kernels.backward[grid](
                dq_ptr=dq_or_dqkv,
                dk_ptr=dkv[:, -2],
                dv_ptr=dkv[:, -1],
                cu_seqlens_q_ptr=cu_seqlens_q,
                cu_seqlens_k_ptr=cu_seqlens_k,
                **arguments,
                **options,
            )
    else:
        delta = torch.empty_like(lse)
        arguments |= {"lse_ptr": lse, "delta_ptr": delta}
        arguments |= {"q_sentences_ptr": q_sentences, "k_sentences_ptr": k_sentences}
        tile_kernels.backward_q[(triton.cdiv(tokens, _BACKWARD_TILES["TILE"]), heads)](
            out_ptr=out,
            dq_ptr=dq_or_dqkv,
            cu_seqlens_k_ptr=cu_seqlens_k,
            num_tokens=tokens,
            **arguments,
            **_BACKWARD_TILES,
        )
        tile_kernels.backward_kv[(triton.cdiv(len(kv), _BACKWARD_TILES["TILE"]), heads)](
            dk_ptr=dkv[:, -2],
            dv_ptr=dkv[:, -1],
            cu_seqlens_q_ptr=cu_seqlens_q,
            num_tokens=len(kv),
            **arguments,
            **_BACKWARD_TILES,
        )
    return dq_or_dqkv, dq_or_dqkv.new_empty(0) if is_self_attention else dkv


@torch.library.register_fake("timetrial::packed_attention_backward")
def _(
    dout: Tensor, out: Tensor, lse: Tensor, q_or_qkv: Tensor, kv: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q_or_qkv), q_or_qkv.new_empty(0) if q_or_qkv.shape[1] == 3 else torch.empty_like(kv)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.max_seqlen, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    out, lse, q_or_qkv, kv, *layout = ctx.saved_tensors
    options = (ctx.max_seqlen, ctx.causal, ctx.dropout)
    dq_or_dqkv, dkv = _attention_backward(dout.contiguous(), out, lse, q_or_qkv, kv, *layout, *options)
    without_gradient = [None] * (len(layout) + len(options))
    return dq_or_dqkv, None if q_or_qkv.shape[1] == 3 else dkv, *without_gradient


torch.library.register_autograd("timetrial::packed_attention", _backward, setup_context=_setup_context)


# Two products per query-key pair forward and five backward, as PyTorch counts its own attention.
@register_flop_formula(torch.ops.timetrial.packed_attention, get_raw=True)
def _count_flops(
    q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    *others: Any, **options: Any,
) -> int:  # fmt: skip
    return 4 * _count_pairs(q_sentences, cu_seqlens_k) * q_or_qkv.shape[-2] * q_or_qkv.shape[-1]


@register_flop_formula(torch.ops.timetrial.packed_attention_backward, get_raw=True)
def _count_backward_flops(
    dout: Tensor, out: Tensor, lse: Tensor, q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *others: Any, **options: Any,
) -> int:  # fmt: skip
    return 10 * _count_pairs(q_sentences, cu_seqlens_k) * q_or_qkv.shape[-2] * q_or_qkv.shape[-1]


def _count_pairs(q_sentences: Tensor, cu_seqlens_k: Tensor) -> int:
    """Return the number of query-key pairs within sentences."""
    return int(cu_seqlens_k.diff()[q_sentences].sum())


def _has_whole_sentences(max_seqlen: int) -> bool:
    return max_seqlen <= _SENTENCES[-1]["BLOCK"]


def _sentence_launches(cu_seqlens: Tensor, heads: int) -> Iterator[tuple[tuple[int], dict[str, int]]]:
    """Yield the grid and the options of a kernel of whole sentences for each range of lengths."""
    shorter, heads_per_program = 0, math.gcd(heads, _HEADS)
    for options in _SENTENCES:
        grid = ((len(cu_seqlens) - 1) * heads // heads_per_program,)
        yield grid, {"HEADS": heads_per_program, "SHORTER": shorter, **options}
        shorter = options["BLOCK"]


def _shared_arguments(q_or_qkv: Tensor, kv: Tensor, seed: Tensor, causal: bool, dropout: float) -> dict[str, Any]:
    """Return the arguments that all kernels have in common."""
    *_, heads, head_size = q_or_qkv.shape
    return {
        "q_ptr": q_or_qkv,
        "k_ptr": kv[:, -2],
        "v_ptr": kv[:, -1],
        "seed_ptr": seed,
        "q_stride": q_or_qkv.stride(0),
        "kv_stride": kv.stride(0),
        "scale_log2": head_size**-0.5 * _LOG2E,  # scores to base 2
        "drop_threshold": drop_threshold(dropout),
        "keep_scale": keep_scale(dropout),
        "CAUSAL": causal,
        "DROPOUT": dropout > 0,
        "H": heads,
        "D": head_size,
        # The precision of float32 products that PyTorch's own matrix products are set to.
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
    }
