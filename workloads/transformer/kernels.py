"""Attention between packed sentences by Triton kernels.

If no sentence can be longer than 64 tokens, `sentence_kernels.py` takes whole sentences at once, otherwise
`tile_kernels.py` tiles that cover several. Every sum is kept in fp32. Shapes: T and S query and key tokens, H heads,
D head size, N sentences.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..common.nn.triton_support import triton_available
from . import sentence_kernels, tile_kernels

try:
    import triton
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

__all__ = ["attention", "is_supported"]

# Of `tile_kernels.py`: tile of a kernel's own side, step over the other side, warps, stages. The fastest of 24 on an
# H200 (PERFORMANCE.md).
_FORWARD = {"TILE": 64, "STEP": 32, "num_warps": 4, "num_stages": 1}
_BACKWARD = {"TILE": 32, "STEP": 16, "num_warps": 2, "num_stages": 2}
# Of `sentence_kernels.py`, one for sentences of at most 32 tokens on their longer side and one for the others. The
# fastest of ten on an H100.
_SENTENCES = ({"BLOCK": 32, "num_warps": 2, "num_stages": 2}, {"BLOCK": 64, "num_warps": 4, "num_stages": 2})
_HEADS = 8  # of a sentence per program
_LOG2E = 1.4426950408889634


def is_supported(query: Tensor) -> bool:
    """Return whether the kernels can run on the device of `query` [..., D] and support its head size."""
    return triton_available(query) and query.shape[-1] in (16, 32, 64, 128)


def _for_sentences(kernel: Any, cu_seqlens: Tensor, heads: int, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel of whole sentences for each range of lengths."""
    shorter, heads_per_program = 0, math.gcd(heads, _HEADS)
    for options in _SENTENCES:
        grid = ((len(cu_seqlens) - 1) * heads // heads_per_program,)
        kernel[grid](*arguments, HEADS=heads_per_program, SHORTER=shorter, **options)
        shorter = options["BLOCK"]


def _has_whole_sentences(max_seqlen: int) -> bool:
    return max_seqlen <= _SENTENCES[-1]["BLOCK"]


def _dot_precision() -> str:
    """Return the precision of float32 products that PyTorch's own matrix products are set to."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _constants(dropout: float, head_size: int) -> tuple[float, int, float, float]:
    """Return the factor of scores to base 2, the least number that is kept, 1 / (1 - dropout), and that to base e."""
    scale = head_size**-0.5
    return scale * _LOG2E, int(dropout * 2**24), 1 / (1 - dropout), scale


@torch.library.custom_op("timetrial::packed_attention", mutates_args=())
def _attention(
    q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    seed: Tensor, max_seqlen: int, causal: bool, dropout: float, stock_random: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, _, heads, head_size = q_or_qkv.shape
    out = q_or_qkv.new_empty(tokens, heads, head_size)
    inputs = (q_or_qkv, kv[:, -2], kv[:, -1])
    numbers = (q_or_qkv.stride(0), kv.stride(0), *_constants(dropout, head_size)[:3])
    constants = (causal, dropout > 0, stock_random, heads, head_size, _dot_precision())
    if _has_whole_sentences(max_seqlen):
        arguments = (*inputs, out, cu_seqlens_q, cu_seqlens_k, seed, *numbers, *constants)
        _for_sentences(sentence_kernels.forward, cu_seqlens_q, heads, arguments)
        return out, q_or_qkv.new_empty(0)
    lse = q_or_qkv.new_empty(tokens, heads, dtype=torch.float32)
    tile_kernels.forward[(triton.cdiv(tokens, _FORWARD["TILE"]), heads)](
        *inputs, out, lse, q_sentences, k_sentences, cu_seqlens_k, seed, tokens, *numbers, *constants, **_FORWARD
    )
    return out, lse


@_attention.register_fake
def _(
    q_or_qkv, kv, q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k, seed, max_seqlen, causal, dropout, stock_random
):
    tokens, _, heads, head_size = q_or_qkv.shape
    out = q_or_qkv.new_empty(tokens, heads, head_size)
    if _has_whole_sentences(max_seqlen):
        return out, q_or_qkv.new_empty(0)
    return out, q_or_qkv.new_empty(tokens, heads, dtype=torch.float32)


@torch.library.custom_op("timetrial::packed_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor, out: Tensor, lse: Tensor, q_or_qkv: Tensor, kv: Tensor, q_sentences: Tensor, k_sentences: Tensor,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seed: Tensor, max_seqlen: int, causal: bool, dropout: float,
    stock_random: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, parts, heads, head_size = q_or_qkv.shape
    is_self_attention = parts == 3  # queries, keys and values are in one tensor
    grad_own = torch.empty_like(q_or_qkv)
    grad_kv = grad_own if is_self_attention else torch.empty_like(kv)
    inputs, grads = (q_or_qkv, kv[:, -2], kv[:, -1]), (grad_kv[:, -2], grad_kv[:, -1])
    numbers = (q_or_qkv.stride(0), kv.stride(0), *_constants(dropout, head_size))
    constants = (causal, dropout > 0, stock_random, heads, head_size, _dot_precision())
    if _has_whole_sentences(max_seqlen):
        layout = (cu_seqlens_q, cu_seqlens_k, seed)
        arguments = (*inputs, grad_out, grad_own, *grads, *layout, *numbers, *constants)
        _for_sentences(sentence_kernels.backward, cu_seqlens_q, heads, arguments)
    else:
        delta = torch.empty_like(lse)
        tile_kernels.backward_q[(triton.cdiv(tokens, _BACKWARD["TILE"]), heads)](
            *inputs, out, grad_out, lse, delta, grad_own, q_sentences, k_sentences, cu_seqlens_k, seed, tokens,
            *numbers, *constants, **_BACKWARD,
        )  # fmt: skip
        tile_kernels.backward_kv[(triton.cdiv(len(kv), _BACKWARD["TILE"]), heads)](
            *inputs, grad_out, lse, delta, *grads, q_sentences, k_sentences, cu_seqlens_q, seed, len(kv), *numbers,
            *constants, **_BACKWARD,
        )  # fmt: skip
    return grad_own, grad_own.new_empty(0) if is_self_attention else grad_kv


@_attention_backward.register_fake
def _(
    grad_out,
    out,
    lse,
    q_or_qkv,
    kv,
    q_sentences,
    k_sentences,
    cu_seqlens_q,
    cu_seqlens_k,
    seed,
    max_seqlen,
    causal,
    dropout,
    stock_random,
):
    return torch.empty_like(q_or_qkv), q_or_qkv.new_empty(0) if q_or_qkv.shape[1] == 3 else torch.empty_like(kv)


def _count_pairs(q_sentences: Tensor, cu_seqlens_k: Tensor) -> int:
    """Return the number of query-key pairs within sentences."""
    return int(cu_seqlens_k.diff()[q_sentences].sum())


# Two products per query-key pair forward and five backward, as PyTorch counts its own attention.
@register_flop_formula(torch.ops.timetrial.packed_attention, get_raw=True)
def _count_flops(q_or_qkv, kv, q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k, *_, **__):
    return 4 * _count_pairs(q_sentences, cu_seqlens_k) * q_or_qkv.shape[-2] * q_or_qkv.shape[-1]


@register_flop_formula(torch.ops.timetrial.packed_attention_backward, get_raw=True)
def _count_backward_flops(
    grad_out, out, lse, q_or_qkv, kv, q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k, *_, **__
):
    return 10 * _count_pairs(q_sentences, cu_seqlens_k) * q_or_qkv.shape[-2] * q_or_qkv.shape[-1]


def _setup_context(ctx, inputs, output):
    *tensors, ctx.max_seqlen, ctx.causal, ctx.dropout, ctx.stock_random = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad_out, _):
    out, lse, q_or_qkv, kv, *layout = ctx.saved_tensors
    options = (ctx.max_seqlen, ctx.causal, ctx.dropout, ctx.stock_random)
    grad_own, grad_kv = _attention_backward(grad_out.contiguous(), out, lse, q_or_qkv, kv, *layout, *options)
    return grad_own, None if q_or_qkv.shape[1] == 3 else grad_kv, *[None] * 9


_attention.register_autograd(_backward, setup_context=_setup_context)


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
    stock_random: bool,
) -> Tensor:
    """Return softmax(q k / sqrt(D)) v within sentences, with dropout of the weights: [T, H, D].

    For self-attention `q_or_qkv` [T, 3, H, D] holds queries, keys and values, and `kv` is None. For cross-attention it
    holds the queries [T, 1, H, D], and `kv` [S, 2, H, D] the keys and values. `q_sentences` and `k_sentences` int64 are
    each token's sentence; `cu_seqlens_q` and `cu_seqlens_k` int32 [N + 1] are the cumulative lengths, none of more than
    `max_seqlen` tokens. The sentence of every query must have keys. `stock_random`: draw the dropout with Triton's
    generator instead of a hash.
    """
    seed = torch.randint(2**31 - 1, (1,), dtype=torch.int32, device=q_or_qkv.device)
    q_or_qkv = q_or_qkv.contiguous()
    kv = q_or_qkv.detach() if kv is None else kv.contiguous()
    layout = (q_sentences, k_sentences, cu_seqlens_q, cu_seqlens_k)
    return _attention(q_or_qkv, kv, *layout, seed, max_seqlen, causal, dropout, stock_random)[0]
