"""Sums over segments of samples, which are the gradients of embedding tables: no atomics, and every row written once.

Shapes: B samples, N rows of a table, D columns of the summed values, G GMF dimension, P partial sums. Sums are
accumulated in fp32 and in a fixed order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.nn.triton_support import tl, triton, triton_available

_PARTIAL_ROWS = 128  # rows that a tall matrix is first reduced to


@dataclass(frozen=True)
class GMFSide:
    """What the gradient of one side's GMF table, users' or items', depends on."""

    order: Tensor | None
    """int32 [B] sorts the samples by this side's ids; None: they are sorted."""
    starts: Tensor
    """int32 [N + 1]: where the segments of equal ids start in this order."""
    table: Tensor
    """This side's table, fp32 [N, G]."""
    other_table: Tensor
    """The other side's table, fp32 [., G]."""
    other_ids: Tensor
    """The samples' rows of it, int32 [B]."""


def lookup(table: Tensor, ids: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
    """Return table [N, D] at ids int32 [B]: [B, D]. The gradient is `segment_sum` by `order` and `starts`."""
    rows: Tensor = _Lookup.apply(table, ids, order, starts)
    return rows


def segment_sum(values: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
    """Return out[n] = sum of values[order[starts[n]:starts[n + 1]]]: fp32 [N, D], fp64 for fp64 values [B, D].

    `order` int32 [B], None for the identity; `starts` int32 [N + 1].
    """
    dim, count = values.shape[1], starts.numel() - 1
    if triton_available(values) and dim & (dim - 1) == 0:
        out = values.new_empty(count, dim, dtype=torch.float32)
        _sum_segments[(count,)](
            values_ptr=values,
            values_stride=dim,
            order_ptr=order,
            starts_ptr=starts,
            out_ptr=out,
            num_segments=count,
            D=dim,
            G=1,
            BLOCK_B=8,
            SEGMENTS=1,
            SCALED=False,
            num_warps=1,
            num_stages=1,
        )
        return out
    values = values.float() if values.dtype != torch.float64 else values
    if order is None:
        order = torch.arange(values.shape[0], dtype=starts.dtype, device=values.device)
    # Values before the first and after the last segment are separate bags, which are dropped.
    bounds = torch.cat([starts.new_zeros(1), starts, starts.new_full((1,), len(order))])
    return F.embedding_bag(order, values, bounds, mode="sum", include_last_offset=True)[1:-1]


def sum_gradients(
    values: Tensor, side: GMFSide, dlogit: Tensor, weight: Tensor, dloss: Tensor, out: Tensor, *, scaled: bool
) -> tuple[Tensor, Tensor | None]:
    """Sum values half [B, D] over the side's segments into `out` [N, D], times dloss fp32 [] if `scaled`.

    Return the gradients, times dloss, of the side's GMF table fp32 [N, G] and of the output `weight` fp32 [1, >= G] for
    its GMF part [G]; the latter is None on the items' side. `dlogit` fp32 [B] are the gradients of the logits.
    """
    dgmf, count = torch.empty_like(side.table), out.shape[0]
    block_b, segments = (8, 4) if side.order is None else (32, 1)
    programs = -(-count // segments)
    parts = dgmf.new_empty(programs, dgmf.shape[1]) if side.order is None else None
    _sum_segments[(programs,)](
        values_ptr=values,
        values_stride=values.stride(0),
        order_ptr=side.order,
        starts_ptr=side.starts,
        out_ptr=out,
        dloss_ptr=dloss,
        dlogit_ptr=dlogit,
        table_ptr=side.table,
        other_table_ptr=side.other_table,
        other_ids_ptr=side.other_ids,
        weight_ptr=weight,
        dgmf_ptr=dgmf,
        dweight_ptr=parts,
        num_segments=count,
        D=out.shape[1],
        G=dgmf.shape[1],
        BLOCK_B=block_b,
        SEGMENTS=segments,
        SCALED=scaled,
        num_warps=1,
        num_stages=1,
    )
    return dgmf, None if parts is None else sum_parts(parts, parts.new_empty(parts.shape[1])) * dloss


def sum_parts(parts: Tensor, out: Tensor) -> Tensor:
    """Write the sum of parts [P, ...] over P to `out`, fp32 of the shape of parts[0], in a fixed order."""
    count, width = parts.shape[0], parts[0].numel()
    if count > 1024:  # PyTorch's sum over the rows of a tall matrix starts too few programs
        partial = parts.new_empty(_PARTIAL_ROWS, width, dtype=torch.float32)
        _sum_rows[(-(-width // 128), _PARTIAL_ROWS)](
            parts_ptr=parts,
            out_ptr=partial,
            num_rows=count,
            width=width,
            rows_per_program=-(-count // _PARTIAL_ROWS),
            BLOCK_P=32,
            BLOCK_D=128,
            num_warps=4,
        )
        parts = partial.view(_PARTIAL_ROWS, *out.shape)
    return torch.sum(parts, 0, out=out)


class _Lookup(torch.autograd.Function):
    """y = table[ids]; dtable[n] = sum of dy over the samples with ids = n."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
        ctx.save_for_backward(order, starts)
        return table.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        order, starts = ctx.saved_tensors
        return segment_sum(dy.contiguous(), order, starts).to(dy.dtype), None, None, None


@triton.jit(do_not_specialize=["num_segments"])
def _sum_segments(
    values_ptr, values_stride, order_ptr, starts_ptr, out_ptr, num_segments, D: tl.constexpr, G: tl.constexpr,
    BLOCK_B: tl.constexpr, SEGMENTS: tl.constexpr, SCALED: tl.constexpr, dloss_ptr=None, dlogit_ptr=None,
    table_ptr=None, other_table_ptr=None, other_ids_ptr=None, weight_ptr=None, dgmf_ptr=None, dweight_ptr=None,
):  # fmt: skip
    """out[n] = sum of values over segment n; SEGMENTS segments per program, BLOCK_B samples at a time.

    With `dgmf_ptr`, the sum of dlogit * other_table[other_ids] also gives the gradient of row n of this side's GMF
    table; with `dweight_ptr`, the output weight's gradient too, one part per program.
    """
    d, g = tl.arange(0, D), tl.arange(0, G)
    first = tl.program_id(0) * SEGMENTS
    dweight = tl.zeros([G], tl.float32)
    for n in range(first, tl.minimum(first + SEGMENTS, num_segments)):
        table_row, total, gmf_total = tl.cast(n, tl.int64), tl.zeros([D], tl.float32), tl.zeros([G], tl.float32)
        end = tl.load(starts_ptr + n + 1)
        for start in range(tl.load(starts_ptr + n), end, BLOCK_B):
            sample = start + tl.arange(0, BLOCK_B)
            valid = sample < end
            if order_ptr is not None:
                sample = tl.load(order_ptr + sample, valid, other=0)
            pointers = values_ptr + sample[:, None].to(tl.int64) * values_stride + d[None, :]
            total += tl.sum(tl.load(pointers, valid[:, None], other=0.0).to(tl.float32), 0)
            if dgmf_ptr is not None:
                other_id = tl.load(other_ids_ptr + sample, valid, other=0).to(tl.int64)
                row = tl.load(other_table_ptr + other_id[:, None] * G + g[None, :], valid[:, None], other=0.0)
                gmf_total += tl.sum(row * tl.load(dlogit_ptr + sample, valid, other=0.0)[:, None], 0)
        if SCALED:
            total *= tl.load(dloss_ptr)
        tl.store(out_ptr + table_row * D + d, total.to(out_ptr.dtype.element_ty))
        if dgmf_ptr is not None:
            tl.store(dgmf_ptr + table_row * G + g, gmf_total * tl.load(weight_ptr + g) * tl.load(dloss_ptr))
        if dweight_ptr is not None:
            dweight += gmf_total * tl.load(table_ptr + table_row * G + g)
    if dweight_ptr is not None:
        tl.store(dweight_ptr + tl.program_id(0).to(tl.int64) * G + g, dweight)


@triton.jit(do_not_specialize=["num_rows", "rows_per_program"])
def _sum_rows(
    parts_ptr, out_ptr, num_rows, width, rows_per_program, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """out[p] = sum of the rows of program p."""
    column = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    first = tl.program_id(1) * rows_per_program
    end = tl.minimum(first + rows_per_program, num_rows)
    total = tl.zeros([BLOCK_D], tl.float32)
    for start in range(first, end, BLOCK_P):
        row = (start + tl.arange(0, BLOCK_P)).to(tl.int64)[:, None]
        pointers = parts_ptr + row * width + column[None, :]
        total += tl.sum(tl.load(pointers, (row < end) & (column < width)[None, :], other=0.0).to(tl.float32), 0)
    tl.store(out_ptr + tl.program_id(1) * width + column, total, column < width)
