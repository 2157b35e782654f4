"""Triton kernels of what lies between the matrix products and the attention of a GPT that is not compiled.

Each passes once over its tensors, also where PyTorch sums a gradient for a bias in a pass of its own: a layer norm adds
the branch before it with the bias of its last layer, and a layer norm, GELU and the three parts of a projection sum
their gradients while they write them.

Shapes: R rows (tokens of all windows), D columns, N windows, t tokens, h heads of size d. Sums are accumulated in fp32
and in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.nn.triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

_NORM_TILE, _NORM_WARPS, _MAX_WIDTH = 2048, 4, 8192  # elements and warps of a program; the widest norm
_NORM_PROGRAMS = 528  # that share the rows of a backward pass: four on each multiprocessor of an H100
_ROWS, _COLUMNS = 16, 128  # of a tile of the other kernels
_PROGRAMS = 1056  # that share the sums of columns
_BLOCK = 1024  # elements of a program of GELU's forward pass


def add_layer_norm(
    norm: nn.LayerNorm, x: Tensor, branch: Tensor | None = None, branch_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x + branch + branch_bias, and its layer norm, both [N, t, D] and by the kernel in x's dtype.

    `branch_bias` [D] is added to a branch only. Do not change the first result in place: the backward pass reads it.
    """
    if _is_fusible(x) and x.shape[-1] <= _MAX_WIDTH and x.is_contiguous():
        total, normalized = _AddLayerNorm.apply(x, branch, branch_bias, norm.weight, norm.bias, norm.eps)
        return total, normalized
    if branch is not None:
        x = x + (branch if branch_bias is None else branch + branch_bias.to(branch.dtype))
    return x, norm(x)


def linear_gelu(linear: nn.Linear, x: Tensor) -> Tensor:
    """Return GELU of the layer's output, approximated by tanh."""
    if _is_fusible(x) and linear.out_features % _COLUMNS == 0:
        activated: Tensor = _GELU.apply(_linear_without_bias_gradient(linear, x), linear.bias)
        return activated
    return F.gelu(linear(x), approximate="tanh")


def linear_heads(linear: nn.Linear, x: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values [N, h, t, d] of the layer's output [N, t, 3 * h * d], as views of it."""
    if _is_fusible(x) and linear.out_features // 3 % _COLUMNS == 0:
        heads: tuple[Tensor, ...] = _SplitHeads.apply(_linear_without_bias_gradient(linear, x), linear.bias, num_heads)
        return heads
    return _split_heads(linear(x), num_heads)


def _is_fusible(x: Tensor) -> bool:
    return triton_available(x) and not torch.compiler.is_compiling()


def _linear_without_bias_gradient(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight, None if linear.bias is None else linear.bias.detach())


def _split_heads(x: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return tuple(part.transpose(1, 2) for part in x.unflatten(-1, (3, num_heads, -1)).unbind(2))


class _AddLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, branch_bias: Tensor | None, weight: Tensor, bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        has_branch, width = branch is not None, x.shape[-1]
        has_branch_bias = has_branch and branch_bias is not None
        total, normalized = torch.empty_like(x) if has_branch else x, torch.empty_like(x)
        rows = x.numel() // width
        moments = torch.empty(2, rows, device=x.device)
        block, per_program = _norm_tile(width)
        _norm_forward[(triton.cdiv(rows, per_program),)](
            x, x if branch is None else branch.contiguous(), weight if branch_bias is None else branch_bias, total,
            normalized, moments, weight, weight if bias is None else bias, rows, width, eps, has_branch,
            has_branch_bias, bias is not None, per_program, block, num_warps=_NORM_WARPS,
        )  # fmt: skip
        ctx.has_branch, ctx.has_branch_bias, ctx.has_bias = has_branch, has_branch_bias, bias is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, moments, weight)
        return total.view_as(total), normalized

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        total, moments, weight = ctx.saved_tensors
        of_total, of_normalized = grads
        has_other, width = of_total is not None, total.shape[-1]
        rows = total.numel() // width
        if of_normalized is None:
            of_sum = None if of_total is None or not ctx.has_branch_bias else of_total.reshape(rows, width).sum(0)
            return of_total, of_total if ctx.has_branch else None, of_sum, None, None, None
        of_normalized = of_normalized.contiguous()
        other = of_normalized if of_total is None else of_total.contiguous()
        block, per_program = _norm_tile(width)
        programs = min(_NORM_PROGRAMS, triton.cdiv(rows, per_program))
        grad, sums = torch.empty_like(total), torch.empty(programs, 2 + ctx.has_branch_bias, width, device=total.device)
        _norm_backward[(programs,)](
            total, of_normalized, other, grad, moments, weight, sums, rows, width, triton.cdiv(rows, programs),
            has_other, ctx.has_branch_bias, per_program, block, num_warps=_NORM_WARPS,
        )  # fmt: skip
        of_weight, of_bias, *of_branch_bias = sums.sum(0)
        return (
            grad,
            grad if ctx.has_branch else None,
            of_branch_bias[0] if ctx.has_branch_bias else None,
            of_weight,
            of_bias if ctx.has_bias else None,
            None,
        )


class _GELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        _gelu_forward[(triton.cdiv(x.numel(), _BLOCK),)](x, y, x.numel(), _BLOCK)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        (x,) = ctx.saved_tensors
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        parts, chunk = _parts(rows, width)
        grad, sums = torch.empty_like(x), torch.empty(parts, width, device=x.device)
        _gelu_backward[(width // _COLUMNS, parts)](
            x, grads[0].contiguous(), grad, sums, rows, width, chunk, _ROWS, _COLUMNS
        )
        return grad, sums.sum(0) if ctx.has_bias else None


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, num_heads: int) -> tuple[Tensor, ...]:
        ctx.has_bias = bias is not None
        return _split_heads(x, num_heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if any(grad.stride() != grads[0].stride() for grad in grads):
            grads = tuple(grad.contiguous() for grad in grads)
        first = grads[0]
        windows, heads, tokens, size = first.shape
        rows, width = windows * tokens, heads * size
        parts, chunk = _parts(rows, 3 * width)
        packed = torch.empty(windows, tokens, 3 * width, dtype=first.dtype, device=first.device)
        sums = torch.empty(parts, 3 * width, device=first.device)
        _pack_heads[(3 * width // _COLUMNS, parts)](
            *grads, packed, sums, rows, width, chunk, tokens, size, *first.stride(), _ROWS, _COLUMNS
        )
        return packed, sums.sum(0) if ctx.has_bias else None, None


def _norm_tile(width: int) -> tuple[int, int]:
    """Return the columns, a power of two, and the rows of a tile."""
    block = triton.next_power_of_2(width)
    return block, max(1, _NORM_TILE // block)


def _parts(rows: int, width: int) -> tuple[int, int]:
    """Return how many programs share the rows of a block of columns, and the rows of each."""
    parts = max(1, min(triton.cdiv(rows, _ROWS), _PROGRAMS * _COLUMNS // width))
    return parts, triton.cdiv(rows, parts)


if triton is not None:

    @triton.jit
    def _norm_forward(
        x, branch, branch_bias, total, normalized, moments, weight, bias, rows, width, eps, HAS_BRANCH: tl.constexpr,
        HAS_BRANCH_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Write the sum, its layer norm and, for the backward pass, its mean and 1 / deviation."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK)
        offset = row.to(tl.int64)[:, None] * width + column[None]
        in_width, in_rows = column < width, row < rows
        mask = in_rows[:, None] & in_width[None]
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        if HAS_BRANCH:
            value += tl.load(branch + offset, mask=mask, other=0.0).to(tl.float32)
            if HAS_BRANCH_BIAS:
                value += tl.load(branch_bias + column, mask=in_width, other=0.0)[None]
            rounded = value.to(total.dtype.element_ty)
            tl.store(total + offset, rounded, mask=mask)
            value = rounded.to(tl.float32)
        mean = tl.sum(value, 1) / width
        centered = tl.where(mask, value - mean[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centered * centered, 1) / width + eps)
        tl.store(moments + row, mean, mask=in_rows)
        tl.store(moments + rows + row, rstd, mask=in_rows)
        result = centered * rstd[:, None] * tl.load(weight + column, mask=in_width, other=0.0)[None]
        if HAS_BIAS:
            result += tl.load(bias + column, mask=in_width, other=0.0)[None]
        tl.store(normalized + offset, result.to(normalized.dtype.element_ty), mask=mask)

    @triton.jit
    def _norm_backward(
        total, grad, other, result, moments, weight, sums, rows, width, chunk, HAS_OTHER: tl.constexpr,
        HAS_BRANCH_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Write the gradient of the sum, plus `other`, and the sums over a part of the rows for weight and biases.

        With x' the normalized values and g = grad * weight: (g - mean(g) - x' mean(g x')) / deviation.
        """
        part, column = tl.program_id(0), tl.arange(0, BLOCK)
        in_width = column < width
        factor = tl.load(weight + column, mask=in_width, other=0.0)[None]
        of_weight, of_bias = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
        of_branch_bias = tl.zeros((ROWS, BLOCK), tl.float32)
        end = tl.minimum(rows, (part + 1) * chunk)
        for start in range(part * chunk, end, ROWS):
            row = start + tl.arange(0, ROWS)
            offset = row.to(tl.int64)[:, None] * width + column[None]
            mask = (row < end)[:, None] & in_width[None]
            value = tl.load(total + offset, mask=mask, other=0.0).to(tl.float32)
            slope = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
            mean = tl.load(moments + row, mask=row < end, other=0.0)[:, None]
            rstd = tl.load(moments + rows + row, mask=row < end, other=0.0)[:, None]
            scaled = tl.where(mask, (value - mean) * rstd, 0.0)
            of_weight += slope * scaled
            of_bias += slope
            slope = slope * factor
            projection = tl.sum(slope * scaled, 1)[:, None] / width
            gradient = (slope - tl.sum(slope, 1)[:, None] / width - scaled * projection) * rstd
            if HAS_OTHER:
                gradient += tl.load(other + offset, mask=mask, other=0.0).to(tl.float32)
            rounded = gradient.to(result.dtype.element_ty)
            tl.store(result + offset, rounded, mask=mask)
            if HAS_BRANCH_BIAS:
                of_branch_bias += tl.where(mask, rounded.to(tl.float32), 0.0)
        target = sums + part * (2 + HAS_BRANCH_BIAS) * width + column
        tl.store(target, tl.sum(of_weight, 0), mask=in_width)
        tl.store(target + width, tl.sum(of_bias, 0), mask=in_width)
        if HAS_BRANCH_BIAS:
            tl.store(target + 2 * width, tl.sum(of_branch_bias, 0), mask=in_width)

    # 0.5 (1 + tanh(u)) = sigmoid(2 u) for u = sqrt(2 / pi) (x + 0.044715 x^3), so that GELU(x) = x sigmoid(2 u).
    _SLOPE: tl.constexpr = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
    _CUBIC: tl.constexpr = tl.constexpr(0.044715)

    @triton.jit
    def _sigmoid_of_gelu(x):
        """Return sigmoid(2 u)."""
        return tl.sigmoid(x * _SLOPE * (x * x * _CUBIC + 1.0))

    @triton.jit
    def _gelu_forward(x, y, count, BLOCK: tl.constexpr):
        element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + element, mask=element < count, other=0.0).to(tl.float32)
        tl.store(y + element, (value * _sigmoid_of_gelu(value)).to(y.dtype.element_ty), mask=element < count)

    @triton.jit
    def _gelu_backward(x, grad, result, sums, rows, width, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        """Write the gradient of x and its sums over a part of the rows."""
        part, column = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        end = tl.minimum(rows, (part + 1) * chunk)
        for start in range(part * chunk, end, ROWS):
            row = start + tl.arange(0, ROWS)
            offset = row.to(tl.int64)[:, None] * width + column[None]
            mask = (row < end)[:, None] & (column < width)[None]
            value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
            slope = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
            share = _sigmoid_of_gelu(value)
            inner = (value * value * _CUBIC * 3 + 1.0) * _SLOPE
            rounded = (slope * share * (1.0 + value * (1.0 - share) * inner)).to(result.dtype.element_ty)
            tl.store(result + offset, rounded, mask=mask)
            total += rounded.to(tl.float32)
        tl.store(sums + part * width + column, tl.sum(total, 0), mask=column < width)

    @triton.jit
    def _pack_heads(
        queries, keys, values, packed, sums, rows, width, chunk, tokens, size, window_stride, head_stride,
        token_stride, element_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Write the three gradients [N, h, t, d] as [N, t, 3, h, d], and their sums over a part of the rows."""
        part, block = tl.program_id(1), tl.program_id(0)
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        kind = block * COLUMNS // width  # the columns of a block are of one kind
        inner = column - kind * width
        of_column = (inner // size) * head_stride + (inner % size) * element_stride
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        end = tl.minimum(rows, (part + 1) * chunk)
        for start in range(part * chunk, end, ROWS):
            row = (start + tl.arange(0, ROWS)).to(tl.int64)
            offset = (row // tokens * window_stride + row % tokens * token_stride)[:, None] + of_column[None]
            mask = (row < end)[:, None] & (column < 3 * width)[None]
            slope = tl.load(queries + offset, mask=mask & (kind == 0), other=0.0)
            slope += tl.load(keys + offset, mask=mask & (kind == 1), other=0.0)
            slope += tl.load(values + offset, mask=mask & (kind == 2), other=0.0)
            tl.store(packed + row[:, None] * 3 * width + column[None], slope, mask=mask)
            total += slope.to(tl.float32)
        tl.store(sums + part * 3 * width + column, tl.sum(total, 0), mask=column < 3 * width)
