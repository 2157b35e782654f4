"""The first hidden layer applied to a whole embedding table, as Triton kernels.

Shapes: N rows of a table, D embedding size, H1 size of the hidden layer, P programs. "Half" means bf16 or fp16; sums
are accumulated in fp32 and in a fixed order.
"""

import torch
from torch import Tensor

from ...runner.hardware import devices
from ..common.nn.triton_support import tl, triton

_BLOCK_N = 64  # rows that a program processes at a time
_NUM_WARPS = 8


def project_table(table: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return y = table [N, D] @ weight [H1, D].T + bias [H1], all fp32, as the half `dtype` [N, H1].

    `weight` may be a slice of columns.
    """
    y = table.new_empty(table.shape[0], weight.shape[0], dtype=dtype)
    _project_forward[(devices.num_multiprocessors(table.device) * 2,)](
        table_ptr=table,
        weight_ptr=weight,
        bias_ptr=bias,
        y_ptr=y,
        num_rows=table.shape[0],
        weight_stride=weight.stride(0),
        D=table.shape[1],
        H1=weight.shape[0],
        BLOCK_N=_BLOCK_N,
        num_warps=_NUM_WARPS,
        num_stages=1,
    )
    return y


def project_table_backward(dy: Tensor, table: Tensor, weight: Tensor, dloss: Tensor, dw_parts: Tensor) -> Tensor:
    """Return the table's gradient, fp32 [N, D] times dloss fp32 [], from its projection's, half [N, H1].

    The weight's gradient, not scaled, is written to `dw_parts` fp32 [P, H1, D], to be summed over the programs.
    """
    dtable = torch.empty_like(table)
    _project_backward[(dw_parts.shape[0],)](
        dy_ptr=dy,
        table_ptr=table,
        weight_ptr=weight,
        dloss_ptr=dloss,
        dtable_ptr=dtable,
        dw_ptr=dw_parts,
        num_rows=table.shape[0],
        weight_stride=weight.stride(0),
        dw_stride=dw_parts.stride(1),
        D=table.shape[1],
        H1=dy.shape[1],
        BLOCK_N=_BLOCK_N,
        num_warps=_NUM_WARPS,
        num_stages=1,
    )
    return dtable


@triton.jit(do_not_specialize=["num_rows"])
def _project_forward(
    table_ptr, weight_ptr, bias_ptr, y_ptr, num_rows, weight_stride, D: tl.constexpr, H1: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y = table @ weight.T + bias; a program processes BLOCK_N rows at a time."""
    d, h = tl.arange(0, D), tl.arange(0, H1)
    half = y_ptr.dtype.element_ty
    w = tl.load(weight_ptr + h[:, None] * weight_stride + d[None, :]).to(half)
    for start in range(tl.program_id(0) * BLOCK_N, num_rows, tl.num_programs(0) * BLOCK_N):
        row = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        valid = (row < num_rows)[:, None]
        y = tl.dot(tl.load(table_ptr + row[:, None] * D + d[None, :], valid, other=0.0).to(half), w.T)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + h)[None, :]
        tl.store(y_ptr + row[:, None] * H1 + h[None, :], y.to(half), valid)


@triton.jit(do_not_specialize=["num_rows"])
def _project_backward(
    dy_ptr, table_ptr, weight_ptr, dloss_ptr, dtable_ptr, dw_ptr, num_rows, weight_stride, dw_stride,
    D: tl.constexpr, H1: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dtable = dy @ weight * dloss; and dw = dy.T @ table, not scaled, one part per program."""
    d, h = tl.arange(0, D), tl.arange(0, H1)
    half = dy_ptr.dtype.element_ty
    w = tl.load(weight_ptr + h[:, None] * weight_stride + d[None, :]).to(half)
    dloss = tl.load(dloss_ptr)
    dw = tl.zeros([H1, D], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_N, num_rows, tl.num_programs(0) * BLOCK_N):
        row = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        valid = (row < num_rows)[:, None]
        dy = tl.load(dy_ptr + row[:, None] * H1 + h[None, :], valid, other=0.0)
        x = tl.load(table_ptr + row[:, None] * D + d[None, :], valid, other=0.0).to(half)
        tl.store(dtable_ptr + row[:, None] * D + d[None, :], tl.dot(dy, w) * dloss, valid)
        dw = tl.dot(dy.T, x, dw)
    tl.store(dw_ptr + (tl.program_id(0) * H1 + h[:, None]) * dw_stride + d[None, :], dw)
