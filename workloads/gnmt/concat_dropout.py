"""Dropout of concatenated tensors in one kernel, which stores neither a mask nor the concatenation before dropout.

The backward pass draws the same random numbers again, with Triton's Philox. Shapes: T tokens, L and R columns of the
left and the right tensor.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..common.nn.triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

_BLOCK = 1024  # a program has four blocks, because Philox draws four numbers at a time

if triton is not None:

    @triton.jit
    def _drop(
        left, right, joined, seed, size, threshold, scale,
        L: tl.constexpr, R: tl.constexpr, BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Write the concatenation of `left` [T, L] and `right` [T, R] with dropout to `joined` [T, L + R].

        BACKWARD: split the gradient `joined` into `left` and `right`, with the same elements dropped.
        """
        block = tl.program_id(0).to(tl.int64) * BLOCK
        a, b, c, d = tl.randint4x(tl.load(seed), block + tl.arange(0, BLOCK))
        index = 4 * block + tl.arange(0, BLOCK)
        _drop_block(left, right, joined, index, size, a, threshold, scale, L, R, BACKWARD)
        _drop_block(left, right, joined, index + BLOCK, size, b, threshold, scale, L, R, BACKWARD)
        _drop_block(left, right, joined, index + 2 * BLOCK, size, c, threshold, scale, L, R, BACKWARD)
        _drop_block(left, right, joined, index + 3 * BLOCK, size, d, threshold, scale, L, R, BACKWARD)

    @triton.jit
    def _drop_block(
        left, right, joined, index, size, random, threshold, scale,
        L: tl.constexpr, R: tl.constexpr, BACKWARD: tl.constexpr,
    ):  # fmt: skip
        """Process the elements `index` of `joined`; those with 24 random bits below `threshold` are dropped."""
        row, column = index // (L + R), index % (L + R)
        factor = tl.where((random >> 8).to(tl.int32) < threshold, 0.0, scale)
        is_left, is_right = (index < size) & (column < L), (index < size) & (column >= L)
        left_pointers, right_pointers = left + row * L + column, right + row * R + column - L
        dtype = joined.dtype.element_ty
        if BACKWARD:
            value = tl.load(joined + index, mask=index < size, other=0.0).to(tl.float32) * factor
            tl.store(left_pointers, value.to(dtype), mask=is_left)
            if R:
                tl.store(right_pointers, value.to(dtype), mask=is_right)
        else:
            value = tl.load(left_pointers, mask=is_left, other=0.0)
            if R:
                value += tl.load(right_pointers, mask=is_right, other=0.0)
            tl.store(joined + index, (value.to(tl.float32) * factor).to(dtype), mask=index < size)


class _ConcatDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, left, right):
        left = left.contiguous()
        right = left[:, :0] if right is None else right.contiguous()
        ctx.p, ctx.widths = p, (left.shape[1], right.shape[1])
        seed = torch.randint(2**62, (1,), device=left.device)
        joined = left.new_empty(len(left), sum(ctx.widths))
        _run(left, right, joined, seed, p, backward=False)
        ctx.save_for_backward(seed)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grad = grad.contiguous()
        left, right = (grad.new_empty(len(grad), width) for width in ctx.widths)
        (seed,) = ctx.saved_tensors
        _run(left, right, grad, seed, ctx.p, backward=True)
        return None, left, right if ctx.widths[1] else None


def _run(left, right, joined, seed, p, *, backward):
    threshold, size = int(p * 2**24), joined.numel()
    constants = (left.shape[1], right.shape[1], backward, _BLOCK)
    _drop[(triton.cdiv(size, 4 * _BLOCK),)](left, right, joined, seed, size, threshold, 1 / (1 - p), *constants)


def concat_dropout(left: Tensor, right: Tensor | None, p: float, training: bool) -> Tensor:
    """Return `F.dropout(torch.cat([left, right], 1), p, training)`.

    `left` [T, L] and `right` [T, R], which may be None, have one dtype. A dispatch mode sees PyTorch's operators, since
    one that counts operations would not see the kernel.
    """
    if training and p and triton_available(left) and not is_in_torch_dispatch_mode():
        return _ConcatDropout.apply(p, left, right)
    return F.dropout(left if right is None else torch.cat([left, right], 1), p, training)
