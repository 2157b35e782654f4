"""Triton kernels of bias + GELU and of the QKV split after a linear layer, for a GPT that is not compiled.

Their backward passes sum the gradient of the layer's bias while they write the gradient of its output, which PyTorch
reads once more for the bias.

Shapes: R rows (tokens of all windows), D columns, N windows, t tokens, h heads of size d. Sums are accumulated in fp32
and in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...runner.hardware import devices
from ..common.nn.triton_support import tl, triton, triton_available

_BLOCK = 1024  # elements of a program of GELU's forward pass
_BLOCK_R, _BLOCK_D = 16, 128  # rows and columns of a tile of the backward passes
_PROGRAMS_PER_MULTIPROCESSOR = 8  # that share the sums of columns


def linear_gelu(linear: nn.Linear, x: Tensor) -> Tensor:
    """Return GELU, approximated by tanh, of the layer's output [..., D]."""
    if _is_fusible(x) and linear.out_features % _BLOCK_D == 0:
        activated: Tensor = _GELU.apply(_linear_without_bias_gradient(linear, x), linear.bias)
        return activated
    return F.gelu(linear(x), approximate="tanh")


def linear_heads(linear: nn.Linear, x: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values [N, h, t, d] of the layer's output [N, t, 3 * h * d], as views of it."""
    if _is_fusible(x) and linear.out_features // 3 % _BLOCK_D == 0:
        heads: tuple[Tensor, ...] = _SplitHeads.apply(_linear_without_bias_gradient(linear, x), linear.bias, num_heads)
        return heads
    return _split_heads(linear(x), num_heads)


def _is_fusible(x: Tensor) -> bool:
    return triton_available(x) and not torch.compiler.is_compiling()


def _linear_without_bias_gradient(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight, None if linear.bias is None else linear.bias.detach())


def _split_heads(x: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return tuple(part.transpose(1, 2) for part in x.unflatten(-1, (3, num_heads, -1)).unbind(2))


class _GELU(torch.autograd.Function):
    """y = x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) (arXiv:1606.08415).

    `bias` has been added to x before; only its gradient, the sum of dx, is computed here.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), _BLOCK),)
        _gelu_forward[grid](x_ptr=x, y_ptr=y, num_elements=x.numel(), BLOCK=_BLOCK)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        (x,) = ctx.saved_tensors
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        programs, rows_per_program = _share_rows(rows, width, x.device)
        dx, sums = torch.empty_like(x), torch.empty(programs, width, device=x.device)
        _gelu_backward[(width // _BLOCK_D, programs)](
            x_ptr=x,
            dy_ptr=grads[0].contiguous(),
            dx_ptr=dx,
            sums_ptr=sums,
            num_rows=rows,
            width=width,
            rows_per_program=rows_per_program,
            BLOCK_R=_BLOCK_R,
            BLOCK_D=_BLOCK_D,
        )
        return dx, sums.sum(0) if ctx.has_bias else None


class _SplitHeads(torch.autograd.Function):
    """q, k, v = views [N, h, t, d] of x [N, t, 3, h, d], which include the bias; its gradient is the sum of dx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, num_heads: int) -> tuple[Tensor, ...]:
        ctx.has_bias = bias is not None
        return _split_heads(x, num_heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if any(grad.stride() != grads[0].stride() for grad in grads):
            grads = tuple(grad.contiguous() for grad in grads)
        dq, dk, dv = grads
        windows, heads, tokens, head_size = dq.shape
        window_stride, head_stride, token_stride, element_stride = dq.stride()
        rows, width = windows * tokens, heads * head_size
        programs, rows_per_program = _share_rows(rows, 3 * width, dq.device)
        dx = torch.empty(windows, tokens, 3 * width, dtype=dq.dtype, device=dq.device)
        sums = torch.empty(programs, 3 * width, device=dq.device)
        _pack_heads[(3 * width // _BLOCK_D, programs)](
            dq_ptr=dq,
            dk_ptr=dk,
            dv_ptr=dv,
            dx_ptr=dx,
            sums_ptr=sums,
            num_rows=rows,
            width=width,
            rows_per_program=rows_per_program,
            num_tokens=tokens,
            head_size=head_size,
            window_stride=window_stride,
            head_stride=head_stride,
            token_stride=token_stride,
            element_stride=element_stride,
            BLOCK_R=_BLOCK_R,
            BLOCK_D=_BLOCK_D,
        )
        return dx, sums.sum(0) if ctx.has_bias else None, None


def _share_rows(rows: int, width: int, device: torch.device) -> tuple[int, int]:
    """Return how many programs share the rows of a block of columns, and the rows of each."""
    limit = _PROGRAMS_PER_MULTIPROCESSOR * devices.num_multiprocessors(device)
    programs = max(1, min(triton.cdiv(rows, _BLOCK_R), limit * _BLOCK_D // width))
    return programs, triton.cdiv(rows, programs)


_SLOPE: tl.constexpr = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
_CUBIC: tl.constexpr = tl.constexpr(0.044715)


@triton.jit
def _sigmoid_of_gelu(x):
    """Return sigmoid(2 u) of `_GELU`'s formula."""
    return tl.sigmoid(x * _SLOPE * (x * x * _CUBIC + 1.0))


@triton.jit
def _gelu_forward(x_ptr, y_ptr, num_elements, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + element, mask=element < num_elements, other=0.0).to(tl.float32)
    tl.store(y_ptr + element, (x * _sigmoid_of_gelu(x)).to(y_ptr.dtype.element_ty), mask=element < num_elements)


@triton.jit
def _gelu_backward(
    x_ptr, dy_ptr, dx_ptr, sums_ptr, num_rows, width, rows_per_program, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Write dx = dy * s * (1 + x (1 - s) 2 u') with s = sigmoid(2 u), and its sums over the rows of a program."""
    program, column = tl.program_id(1), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    db = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    end = tl.minimum(num_rows, (program + 1) * rows_per_program)
    for start in range(program * rows_per_program, end, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        offset = row.to(tl.int64)[:, None] * width + column[None]
        mask = (row < end)[:, None] & (column < width)[None]
        x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        s = _sigmoid_of_gelu(x)
        inner = (x * x * _CUBIC * 3 + 1.0) * _SLOPE  # 2 u'
        dx = (dy * s * (1.0 + x * (1.0 - s) * inner)).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offset, dx, mask=mask)
        db += dx.to(tl.float32)
    tl.store(sums_ptr + program * width + column, tl.sum(db, 0), mask=column < width)


@triton.jit
def _pack_heads(
    dq_ptr, dk_ptr, dv_ptr, dx_ptr, sums_ptr, num_rows, width, rows_per_program, num_tokens, head_size, window_stride,
    head_stride, token_stride, element_stride, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the gradients [N, h, t, d] of queries, keys and values as dx [N, t, 3, h, d], and sums of its rows."""
    program, block = tl.program_id(1), tl.program_id(0)
    column = block * BLOCK_D + tl.arange(0, BLOCK_D)
    kind = block * BLOCK_D // width  # 0: queries, 1: keys, 2: values; the columns of a block are of one kind
    inner = column - kind * width
    head, element = (inner // head_size).to(tl.int64), (inner % head_size).to(tl.int64)
    of_column = head * head_stride + element * element_stride
    db = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    end = tl.minimum(num_rows, (program + 1) * rows_per_program)
    for start in range(program * rows_per_program, end, BLOCK_R):
        row = (start + tl.arange(0, BLOCK_R)).to(tl.int64)
        offset = (row // num_tokens * window_stride + row % num_tokens * token_stride)[:, None] + of_column[None]
        mask = (row < end)[:, None] & (column < 3 * width)[None]
        dx = tl.load(dq_ptr + offset, mask=mask & (kind == 0), other=0.0)
        dx += tl.load(dk_ptr + offset, mask=mask & (kind == 1), other=0.0)
        dx += tl.load(dv_ptr + offset, mask=mask & (kind == 2), other=0.0)
        tl.store(dx_ptr + row[:, None] * 3 * width + column[None], dx, mask=mask)
        db += dx.to(tl.float32)
    tl.store(sums_ptr + program * 3 * width + column, tl.sum(db, 0), mask=column < 3 * width)
