"""Residual add and layer norm in one Triton kernel, for a GPT that is not compiled.

The kernel also adds the bias of the layer that ends the branch, and its backward pass sums the gradients of all three
parameters while it writes that of the sum, where PyTorch reads the gradient again for each.

Shapes: R rows (tokens of all windows), D columns. Sums are accumulated in fp32 and in a fixed order.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...runner.hardware import devices
from ..common.nn.triton_support import tl, triton, triton_available

_MAX_WIDTH = 8192  # columns of the widest norm
_TILE, _NUM_WARPS = 2048, 4  # elements and warps of a program
_PROGRAMS_PER_MULTIPROCESSOR = 4  # that share the rows of a backward pass


def add_layer_norm(
    norm: nn.LayerNorm, x: Tensor, branch: Tensor | None = None, branch_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x + branch + branch_bias, and its layer norm, both [N, t, D] and by the kernel in x's dtype.

    `x` and `branch` are [N, t, D]; `branch_bias` fp32 [D] is added to a branch only. Do not change the first result in
    place: the backward pass reads it.
    """
    if triton_available(x) and not torch.compiler.is_compiling() and x.shape[-1] <= _MAX_WIDTH and x.is_contiguous():
        total, normalized = _AddLayerNorm.apply(x, branch, branch_bias, norm.weight, norm.bias, norm.eps)
        return total, normalized
    if branch is not None:
        x = x + (branch if branch_bias is None else branch + branch_bias.to(branch.dtype))
    return x, norm(x)


class _AddLayerNorm(torch.autograd.Function):
    """s = x + branch + branch_bias; y = (s - mean(s)) / sqrt(var(s) + eps) * w + b (Ba et al., arXiv:1607.06450)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, branch_bias: Tensor | None, weight: Tensor, bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        has_branch, width = branch is not None, x.shape[-1]
        has_branch_bias = has_branch and branch_bias is not None
        total, y = torch.empty_like(x) if has_branch else x, torch.empty_like(x)
        rows = x.numel() // width
        mean, rstd = (torch.empty(rows, device=x.device) for _ in range(2))
        block_r, block_d = _tile(width)
        _add_layer_norm_forward[(triton.cdiv(rows, block_r),)](
            x_ptr=x,
            branch_ptr=x if branch is None else branch.contiguous(),
            branch_bias_ptr=weight if branch_bias is None else branch_bias,
            sum_ptr=total,
            y_ptr=y,
            mean_ptr=mean,
            rstd_ptr=rstd,
            weight_ptr=weight,
            bias_ptr=weight if bias is None else bias,
            num_rows=rows,
            width=width,
            eps=eps,
            HAS_BRANCH=has_branch,
            HAS_BRANCH_BIAS=has_branch_bias,
            HAS_BIAS=bias is not None,
            BLOCK_R=block_r,
            BLOCK_D=block_d,
            num_warps=_NUM_WARPS,
        )
        ctx.has_branch, ctx.has_branch_bias, ctx.has_bias = has_branch, has_branch_bias, bias is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, mean, rstd, weight)
        return total.view_as(total), y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        total, mean, rstd, weight = ctx.saved_tensors
        dsum, dy = grads
        width = total.shape[-1]
        rows = total.numel() // width
        if dy is None:
            dbranch_bias = None if dsum is None or not ctx.has_branch_bias else dsum.reshape(rows, width).sum(0)
            return dsum, dsum if ctx.has_branch else None, dbranch_bias, None, None, None
        dy = dy.contiguous()
        block_r, block_d = _tile(width)
        limit = _PROGRAMS_PER_MULTIPROCESSOR * devices.num_multiprocessors(total.device)
        programs = min(limit, triton.cdiv(rows, block_r))
        dx, sums = torch.empty_like(total), torch.empty(programs, 2 + ctx.has_branch_bias, width, device=total.device)
        _add_layer_norm_backward[(programs,)](
            sum_ptr=total,
            dy_ptr=dy,
            dsum_ptr=dy if dsum is None else dsum.contiguous(),
            dx_ptr=dx,
            mean_ptr=mean,
            rstd_ptr=rstd,
            weight_ptr=weight,
            sums_ptr=sums,
            num_rows=rows,
            width=width,
            rows_per_program=triton.cdiv(rows, programs),
            HAS_DSUM=dsum is not None,
            HAS_BRANCH_BIAS=ctx.has_branch_bias,
            BLOCK_R=block_r,
            BLOCK_D=block_d,
            num_warps=_NUM_WARPS,
        )
        dw, db, *dbias = sums.sum(0)
        dbranch_bias = dbias[0] if ctx.has_branch_bias else None
        return dx, dx if ctx.has_branch else None, dbranch_bias, dw, db if ctx.has_bias else None, None


def _tile(width: int) -> tuple[int, int]:
    """Return the rows and the columns, a power of two, of a tile."""
    block_d = triton.next_power_of_2(width)
    return max(1, _TILE // block_d), block_d


@triton.jit
def _add_layer_norm_forward(
    x_ptr, branch_ptr, branch_bias_ptr, sum_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, num_rows, width, eps,
    HAS_BRANCH: tl.constexpr, HAS_BRANCH_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the sum, its layer norm and, for the backward pass, its mean and rstd = 1 / sqrt(var + eps)."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    offset = row.to(tl.int64)[:, None] * width + column[None]
    in_width, in_rows = column < width, row < num_rows
    mask = in_rows[:, None] & in_width[None]
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        x += tl.load(branch_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        if HAS_BRANCH_BIAS:
            x += tl.load(branch_bias_ptr + column, mask=in_width, other=0.0)[None]
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + offset, rounded, mask=mask)
        x = rounded.to(tl.float32)
    mean = tl.sum(x, 1) / width
    centered = tl.where(mask, x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, 1) / width + eps)
    tl.store(mean_ptr + row, mean, mask=in_rows)
    tl.store(rstd_ptr + row, rstd, mask=in_rows)
    y = centered * rstd[:, None] * tl.load(weight_ptr + column, mask=in_width, other=0.0)[None]
    if HAS_BIAS:
        y += tl.load(bias_ptr + column, mask=in_width, other=0.0)[None]
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_layer_norm_backward(
    sum_ptr, dy_ptr, dsum_ptr, dx_ptr, mean_ptr, rstd_ptr, weight_ptr, sums_ptr, num_rows, width, rows_per_program,
    HAS_DSUM: tl.constexpr, HAS_BRANCH_BIAS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write dx = (g - mean(g) - x_hat * mean(g * x_hat)) * rstd + dsum with g = dy * w, for the rows of a program.

    Their sums of dy * x_hat, dy and dx, the gradients of w, b and branch_bias, are written to `sums_ptr`.
    """
    program, column = tl.program_id(0), tl.arange(0, BLOCK_D)
    in_width = column < width
    w = tl.load(weight_ptr + column, mask=in_width, other=0.0)[None]
    dw, db = tl.zeros((BLOCK_R, BLOCK_D), tl.float32), tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    dbranch_bias = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    end = tl.minimum(num_rows, (program + 1) * rows_per_program)
    for start in range(program * rows_per_program, end, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        offset = row.to(tl.int64)[:, None] * width + column[None]
        mask = (row < end)[:, None] & in_width[None]
        x = tl.load(sum_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row < end, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, mask=row < end, other=0.0)[:, None]
        x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
        dw += dy * x_hat
        db += dy
        g = dy * w
        projection = tl.sum(g * x_hat, 1)[:, None] / width
        dx = (g - tl.sum(g, 1)[:, None] / width - x_hat * projection) * rstd
        if HAS_DSUM:
            dx += tl.load(dsum_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        rounded = dx.to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offset, rounded, mask=mask)
        if HAS_BRANCH_BIAS:
            dbranch_bias += tl.where(mask, rounded.to(tl.float32), 0.0)
    target = sums_ptr + program * (2 + HAS_BRANCH_BIAS) * width + column
    tl.store(target, tl.sum(dw, 0), mask=in_width)
    tl.store(target + width, tl.sum(db, 0), mask=in_width)
    if HAS_BRANCH_BIAS:
        tl.store(target + 2 * width, tl.sum(dbranch_bias, 0), mask=in_width)
