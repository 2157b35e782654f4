"""Dropout by Philox (Salmon et al. 2011) in Triton kernels: a call of ten rounds gives the masks of eight elements.

An element is dropped if its 16 random bits are below `drop_threshold(p)`. A compiled model has the mask of a tensor
drawn as packed bits and fuses the rest; the backward pass reads the bits again.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .operators import operator
from .triton_support import tl, triton, triton_available

__all__ = ["draw_seed", "drop_threshold", "dropout", "keep_scale", "pack_kept", "relu_dropout"]

_BLOCK = 1024  # calls of Philox per program
_CHOICES = 2**16  # an element's random bits are below this


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element of x [...] with probability `p` and scale the others by 1 / (1 - p); x if not `training`.

    Compiled for a device with Triton, `p` is rounded to a multiple of 2^-16. Otherwise this is PyTorch's dropout, which
    would use one of four random numbers if it was compiled, and store one byte per element.
    """
    if training and p and torch.compiler.is_compiling() and triton_available(x):
        bits = _draw_bits(draw_seed(x.device), x.numel(), drop_threshold(p))
        shifts = torch.arange(8, dtype=torch.int32, device=x.device)
        kept = (bits[:, None] >> shifts & 1).flatten()[: x.numel()].view(x.shape) != 0
        return torch.where(kept, x * keep_scale(p), 0.0)
    return F.dropout(x, p, training)


def relu_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Return `F.dropout(F.relu(x), p, training)` in one kernel where Triton runs, where `p` is rounded as above."""
    if training and p and triton_available(x):
        return _relu_dropout(x.contiguous(), draw_seed(x.device), p)
    return F.dropout(F.relu(x), p, training)


def draw_seed(device: torch.device) -> Tensor:
    """Return the key of a mask, int64 [1]."""
    return torch.randint(2**62, (1,), device=device)


def drop_threshold(p: float) -> int:
    """Return the number below which 16 random bits drop an element."""
    return min(round(p * _CHOICES), _CHOICES - 1)


def keep_scale(p: float) -> float:
    """Return the factor of elements that are kept: 1 over the probability that `drop_threshold(p)` keeps one."""
    return _CHOICES / (_CHOICES - drop_threshold(p))


@operator("timetrial::dropout_bits")
def _draw_bits(seed: Tensor, size: int, threshold: int) -> Tensor:
    """Return uint8 [ceil(size / 8)] of which bit i of byte j says whether element 8 j + i is kept."""
    bits = seed.new_empty(-(-size // 8), dtype=torch.uint8)
    _draw_bits_kernel[(triton.cdiv(len(bits), _BLOCK),)](
        bits_ptr=bits, seed_ptr=seed, num_bytes=len(bits), threshold=threshold, BLOCK=_BLOCK
    )
    return bits


@torch.library.register_fake("timetrial::dropout_bits")
def _(seed: Tensor, size: int, threshold: int) -> Tensor:
    return seed.new_empty(-(-size // 8), dtype=torch.uint8)


@operator("timetrial::relu_dropout")
def _relu_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Return y = dropout(max(x, 0)), contiguous; dx = dy / (1 - p) where y > 0, so that nothing else is kept."""
    y = torch.empty_like(x)
    _relu_dropout_kernel[(triton.cdiv(x.numel(), 8 * _BLOCK),)](
        x_ptr=x, y_ptr=y, seed_ptr=seed, size=x.numel(), threshold=drop_threshold(p), scale=keep_scale(p), BLOCK=_BLOCK
    )
    return y


@torch.library.register_fake("timetrial::relu_dropout")
def _(x: Tensor, seed: Tensor, p: float) -> Tensor:
    return torch.empty_like(x)


def _setup_relu_dropout(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.p = inputs[2]
    ctx.save_for_backward(output)


def _relu_dropout_backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
    (y,) = ctx.saved_tensors
    return torch.where(y <= 0, 0.0, dy * keep_scale(ctx.p)), None, None


torch.library.register_autograd("timetrial::relu_dropout", _relu_dropout_backward, setup_context=_setup_relu_dropout)


@triton.jit
def pack_kept(a, b, c, d, threshold):
    """Return int32 whose bits 0 to 7 say which of the eight halves of four random words are not below `threshold`."""
    return (
        _compare(a, threshold) | _compare(b, threshold) << 2 | _compare(c, threshold) << 4 | _compare(d, threshold) << 6
    )


@triton.jit
def _compare(word, threshold):
    """Return two bits, the lower one of the lower half of `word`."""
    word = word.to(tl.uint32)
    low, high = (word & 0xFFFF).to(tl.int32), (word >> 16).to(tl.int32)
    return (low >= threshold).to(tl.int32) | (high >= threshold).to(tl.int32) << 1


@triton.jit
def _draw_bits_kernel(bits_ptr, seed_ptr, num_bytes, threshold, BLOCK: tl.constexpr):
    """A program takes a block of bytes, each the masks of a call of Philox."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(tl.load(seed_ptr), index)
    tl.store(bits_ptr + index, pack_kept(a, b, c, d, threshold).to(tl.uint8), mask=index < num_bytes)


@triton.jit
def _relu_dropout_kernel(x_ptr, y_ptr, seed_ptr, size, threshold, scale, BLOCK: tl.constexpr):
    """A program takes eight blocks of elements, and each call of Philox one element of each block."""
    calls = tl.program_id(0).to(tl.int64) * BLOCK
    a, b, c, d = tl.randint4x(tl.load(seed_ptr), calls + tl.arange(0, BLOCK))
    kept = pack_kept(a, b, c, d, threshold)
    for number in tl.static_range(8):
        index = 8 * calls + number * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + index, mask=index < size, other=0.0).to(tl.float32)
        y = tl.where(x <= 0.0, 0.0, x * scale)  # NaN stays NaN
        y = tl.where((kept >> number & 1) == 1, y, 0.0)
        tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=index < size)
