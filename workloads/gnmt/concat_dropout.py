"""Dropout of concatenated tensors in one kernel, which stores neither a mask nor the concatenation before dropout.

The backward pass draws the same random numbers again, with Triton's Philox. Shapes: T tokens, L and R columns of the
left and the right tensor.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..common.nn.triton_support import tl, triton, triton_available

_BLOCK = 1024  # a program has four blocks, because Philox draws four numbers at a time


def concat_dropout(left: Tensor, right: Tensor | None, p: float, training: bool) -> Tensor:
    """Return `F.dropout(torch.cat([left, right], 1), p, training)`, [T, L + R].

    `left` [T, L] and `right` [T, R], which may be None, have one floating-point dtype, that of the result. A dispatch
    mode sees PyTorch's operators, since one that counts operations would not see the kernel.
    """
    if training and p and triton_available(left) and not is_in_torch_dispatch_mode():
        return _ConcatDropout.apply(left, right, p)
    return F.dropout(left if right is None else torch.cat([left, right], 1), p, training)


class _ConcatDropout(torch.autograd.Function):
    """y = mask * [left, right] / (1 - p), where elements of the mask are 0 with probability p (Srivastava et al. 2014).

    [dleft, dright] = mask * dy / (1 - p).
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor | None, p: float) -> Tensor:
        left = left.contiguous()
        right = left[:, :0] if right is None else right.contiguous()
        ctx.p, ctx.widths = p, (left.shape[1], right.shape[1])
        seed = torch.randint(2**62, (1,), device=left.device)
        y = left.new_empty(len(left), sum(ctx.widths))
        _drop_and_scale(left, right, y, seed, p, backward=False)
        ctx.save_for_backward(seed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        dy = dy.contiguous()
        dleft, dright = (dy.new_empty(len(dy), width) for width in ctx.widths)
        (seed,) = ctx.saved_tensors
        _drop_and_scale(dleft, dright, dy, seed, ctx.p, backward=True)
        return dleft, dright if ctx.widths[1] else None, None


def _drop_and_scale(left: Tensor, right: Tensor, joined: Tensor, seed: Tensor, p: float, *, backward: bool) -> None:
    """Write `joined` [T, L + R] from `left` [T, L] and `right` [T, R], or these from `joined` if `backward`."""
    _drop[(triton.cdiv(joined.numel(), 4 * _BLOCK),)](
        left_ptr=left,
        right_ptr=right,
        joined_ptr=joined,
        seed_ptr=seed,
        size=joined.numel(),
        threshold=int(p * 2**24),
        scale=1 / (1 - p),
        L=left.shape[1],
        R=right.shape[1],
        BACKWARD=backward,
        BLOCK=_BLOCK,
    )


@triton.jit
def _drop(
    left_ptr, right_ptr, joined_ptr, seed_ptr, size, threshold, scale,
    L: tl.constexpr, R: tl.constexpr, BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the concatenation of left [T, L] and right [T, R] with dropout to joined [T, L + R].

    BACKWARD: split the gradient in joined into left and right, with the same elements dropped.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCK
    a, b, c, d = tl.randint4x(tl.load(seed_ptr), block + tl.arange(0, BLOCK))
    index = 4 * block + tl.arange(0, BLOCK)
    _drop_block(left_ptr, right_ptr, joined_ptr, index, size, a, threshold, scale, L, R, BACKWARD)
    _drop_block(left_ptr, right_ptr, joined_ptr, index + BLOCK, size, b, threshold, scale, L, R, BACKWARD)
    _drop_block(left_ptr, right_ptr, joined_ptr, index + 2 * BLOCK, size, c, threshold, scale, L, R, BACKWARD)
    _drop_block(left_ptr, right_ptr, joined_ptr, index + 3 * BLOCK, size, d, threshold, scale, L, R, BACKWARD)


@triton.jit
def _drop_block(
    left_ptr, right_ptr, joined_ptr, index, size, random, threshold, scale,
    L: tl.constexpr, R: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Process the elements `index` of joined; those with 24 random bits below `threshold` are dropped."""
    row, column = index // (L + R), index % (L + R)
    factor = tl.where((random >> 8).to(tl.int32) < threshold, 0.0, scale)
    is_left, is_right = (index < size) & (column < L), (index < size) & (column >= L)
    left_ptrs, right_ptrs = left_ptr + row * L + column, right_ptr + row * R + column - L
    dtype = joined_ptr.dtype.element_ty
    if BACKWARD:
        value = tl.load(joined_ptr + index, mask=index < size, other=0.0).to(tl.float32) * factor
        tl.store(left_ptrs, value.to(dtype), mask=is_left)
        if R:
            tl.store(right_ptrs, value.to(dtype), mask=is_right)
    else:
        value = tl.load(left_ptrs, mask=is_left, other=0.0)
        if R:
            value += tl.load(right_ptrs, mask=is_right, other=0.0)
        tl.store(joined_ptr + index, (value.to(tl.float32) * factor).to(dtype), mask=index < size)
