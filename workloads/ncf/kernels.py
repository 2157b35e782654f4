"""Triton kernels of NeuMF, and their replacements where Triton is not available.

PERFORMANCE.md explains how the work is divided into kernels. Shapes: B samples, U users, I items, N rows of a table,
H1, H2, H3 sizes of the hidden layers, G GMF dimension. "Half" means bf16 or fp16; every sum is kept in fp32.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.nn.triton_support import triton_available as triton_available  # re-exported

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

TILE = 64  # samples or rows that a program processes at a time
IGNORED = -1.0  # label of a sample that does not count
COLUMN_BLOCKS = 4  # blocks of the first hidden layer's columns, each processed by a program
_PARTIAL_ROWS = 128  # rows that a tall matrix is first reduced to
_MAX_LAYER_SIZES = (256, 128, 64)
_SHARED_MEMORY_BYTES = 160 << 10  # needed for layers of the maximum sizes

Pair = tuple[Tensor, Tensor | None]
"""The tensors of users and items; or one tensor for the samples, and None."""


@lru_cache
def fits_on_chip(device: torch.device, mlp_dim: int, mf_dim: int, *layer_sizes: int) -> bool:
    """Return whether the fused kernels support embeddings and hidden layers of these sizes on the device."""
    sizes = (mlp_dim, mf_dim, *layer_sizes)
    return (
        len(layer_sizes) == len(_MAX_LAYER_SIZES)
        and all(size >= 16 and size & (size - 1) == 0 for size in sizes)
        and max(mlp_dim, mf_dim) <= 128
        and layer_sizes[0] >= 16 * COLUMN_BLOCKS
        and all(size <= limit for size, limit in zip(layer_sizes, _MAX_LAYER_SIZES, strict=True))
        and _device_properties(device.index)["max_shared_mem"] >= _SHARED_MEMORY_BYTES
    )


def count_multiprocessors(tensor: Tensor) -> int:
    """Return the number of multiprocessors of the tensor's device."""
    return _device_properties(tensor.device.index)["multiprocessor_count"]


def segment_sum(values: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
    """Return out[n] = sum of values[order[starts[n]:starts[n + 1]]]: fp32 [N, D], fp64 for fp64 values.

    `order` None is the identity.
    """
    dim, count = values.shape[1], starts.numel() - 1
    if triton_available(values) and dim & (dim - 1) == 0:
        out = values.new_empty(count, dim, dtype=torch.float32)
        sizes = count, dim, 1, 8, 1, False
        sum_segments[(count,)](values, dim, order, starts, out, *[None] * 8, *sizes, num_warps=1, num_stages=1)
        return out
    values = values.float() if values.dtype != torch.float64 else values
    if order is None:
        order = torch.arange(values.shape[0], dtype=starts.dtype, device=values.device)
    # Values before the first and after the last segment are bags of their own, which are dropped.
    bounds = torch.cat([starts.new_zeros(1), starts, starts.new_full((1,), len(order))])
    return F.embedding_bag(order, values, bounds, mode="sum", include_last_offset=True)[1:-1]


def sum_parts(parts: Tensor, out: Tensor) -> Tensor:
    """Write the sum of parts [P, ...] over P to `out`, fp32 of the shape of parts[0], in a fixed order."""
    count, width = parts.shape[0], parts[0].numel()
    if count > 1024:  # PyTorch's sum over the rows of a tall matrix starts too few programs
        partial = parts.new_empty(_PARTIAL_ROWS, width, dtype=torch.float32)
        grid = (-(-width // 128), _PARTIAL_ROWS)
        _sum_rows[grid](parts, partial, count, width, -(-count // _PARTIAL_ROWS), 32, 128, num_warps=4)
        parts = partial.view(_PARTIAL_ROWS, *out.shape)
    return torch.sum(parts, 0, out=out)


@lru_cache
def _device_properties(index: int) -> dict[str, int]:
    return dict(triton.runtime.driver.active.utils.get_device_properties(index))


if triton is not None:

    @triton.jit(do_not_specialize=["count"])
    def sum_segments(
        values, stride, order, starts, out, scale, dlogit, table, other_table, other_ids, weight, dgmf, dweight,
        count, D: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, SEGMENTS: tl.constexpr, SCALED: tl.constexpr,
    ):  # fmt: skip
        """out[n] = sum of values over segment n; SEGMENTS segments per program, ROWS samples at a time.

        With `dgmf`, the sum of dlogit * other_table[other_ids] also gives the gradient of row n of this side's GMF
        table; with `dweight`, the output weight's gradient too, one part per program.
        """
        d, g = tl.arange(0, D), tl.arange(0, G)
        first = tl.program_id(0) * SEGMENTS
        dweight_sum = tl.zeros([G], tl.float32)
        for n in range(first, tl.minimum(first + SEGMENTS, count)):
            total, gmf_sum = tl.zeros([D], tl.float32), tl.zeros([G], tl.float32)
            end = tl.load(starts + n + 1)
            for index in range(tl.load(starts + n), end, ROWS):
                sample = index + tl.arange(0, ROWS)
                valid = sample < end
                if order is not None:
                    sample = tl.load(order + sample, valid, other=0)
                pointers = values + sample[:, None].to(tl.int64) * stride + d[None, :]
                total += tl.sum(tl.load(pointers, valid[:, None], other=0.0).to(tl.float32), 0)
                if dgmf is not None:
                    other_id = tl.load(other_ids + sample, valid, other=0)
                    row = tl.load(other_table + other_id[:, None] * G + g[None, :], valid[:, None], other=0.0)
                    gmf_sum += tl.sum(row * tl.load(dlogit + sample, valid, other=0.0)[:, None], 0)
            if SCALED:
                total *= tl.load(scale)
            tl.store(out + n * D + d, total.to(out.dtype.element_ty))
            if dgmf is not None:
                tl.store(dgmf + n * G + g, gmf_sum * tl.load(weight + g) * tl.load(scale))
            if dweight is not None:
                dweight_sum += gmf_sum * tl.load(table + n * G + g)
        if dweight is not None:
            tl.store(dweight + tl.program_id(0) * G + g, dweight_sum)

    @triton.jit(do_not_specialize=["count"])
    def project(table, weight, bias, out, count, stride, D: tl.constexpr, H1: tl.constexpr, ROWS: tl.constexpr):
        """out [N, H1] = table [N, D] @ weight [H1, D].T + bias; a program processes ROWS rows at a time."""
        d, h = tl.arange(0, D), tl.arange(0, H1)
        half = out.dtype.element_ty
        w = tl.load(weight + h[:, None] * stride + d[None, :]).to(half)
        for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS)
            valid = (row < count)[:, None]
            total = tl.dot(tl.load(table + row[:, None] * D + d[None, :], valid, other=0.0).to(half), w.T)
            if bias is not None:
                total += tl.load(bias + h)[None, :]
            tl.store(out + row[:, None] * H1 + h[None, :], total.to(half), valid)

    @triton.jit(do_not_specialize=["count"])
    def project_backward(
        grad, table, weight, scale, dtable, dweight_parts, count, stride, part_stride,
        D: tl.constexpr, H1: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """dtable = grad @ weight * scale; and the weight's gradient, not scaled, one part per program."""
        d, h = tl.arange(0, D), tl.arange(0, H1)
        half = grad.dtype.element_ty
        w = tl.load(weight + h[:, None] * stride + d[None, :]).to(half)
        grad_scale = tl.load(scale)
        dweight = tl.zeros([H1, D], tl.float32)
        for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS)
            valid = (row < count)[:, None]
            dy = tl.load(grad + row[:, None] * H1 + h[None, :], valid, other=0.0)
            x = tl.load(table + row[:, None] * D + d[None, :], valid, other=0.0).to(half)
            tl.store(dtable + row[:, None] * D + d[None, :], tl.dot(dy, w) * grad_scale, valid)
            dweight = tl.dot(dy.T, x, dweight)
        tl.store(dweight_parts + (tl.program_id(0) * H1 + h[:, None]) * part_stride + d[None, :], dweight)

    @triton.jit
    def _relu(x):
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def _load_ids(users, items, sample, count):
        sample = tl.minimum(sample, count - 1)  # past the end: the last sample again
        return tl.load(users + sample), tl.load(items + sample)

    @triton.jit
    def _load_rows(user_rows, item_rows, user, item, sample, count, h, H1: tl.constexpr):
        """Return columns h [1, .] of the user and item rows; without `item_rows`, the sample's own row twice."""
        if item_rows is None:
            row = tl.load(user_rows + tl.minimum(sample, count - 1)[:, None] * H1 + h)
            return row, row
        else:
            return tl.load(user_rows + user[:, None] * H1 + h), tl.load(item_rows + item[:, None] * H1 + h)

    @triton.jit
    def _first_layer(user_row, item_row, item_rows):
        total = user_row.to(tl.float32)
        if item_rows is not None:
            total += item_row.to(tl.float32)
        return _relu(total).to(user_row.dtype)

    @triton.jit
    def _load_gmf(gmf_user, gmf_item, users, items, G: tl.constexpr):
        g = tl.arange(0, G)[None, :]
        return tl.load(gmf_user + users[:, None] * G + g), tl.load(gmf_item + items[:, None] * G + g)

    @triton.jit(do_not_specialize=["count"])
    def tower_top(
        user_rows, item_rows, gmf_user, gmf_item, users, items, labels, w2, b2, w3, b3, w4, b4, dsecond, logit, sums,
        count, width, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """Forward pass and backward pass down to the second layer; keeps the gradients of the small layers on chip."""
        h1, h2, h3 = tl.arange(0, H1)[None, :], tl.arange(0, H2), tl.arange(0, H3)
        w_second, w_third = tl.load(w2 + h2[:, None] * H1 + h1), tl.load(w3 + h3[:, None] * H2 + h2[None, :])
        bias2, bias3, bias4 = tl.load(b2 + h2)[:, None], tl.load(b3 + h3)[:, None], tl.load(b4)
        w_gmf, w_mlp = tl.load(w4 + tl.arange(0, G))[None, :], tl.load(w4 + G + h3)[:, None]
        dw3, db2 = tl.zeros([H3, H2], tl.float32), tl.zeros([H2], tl.float32)
        db3, dw_mlp = tl.zeros([H3], tl.float32), tl.zeros([H3], tl.float32)
        for start in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
            sample = start + tl.arange(0, TILE)
            valid = sample < count
            user, item = _load_ids(users, items, sample, count)
            gu, gi = _load_gmf(gmf_user, gmf_item, user, item, G)
            gmf = tl.sum(gu * gi * w_gmf, 1)
            a, c = _load_rows(user_rows, item_rows, user, item, sample, count, h1, H1)
            first = _first_layer(a, c, item_rows)
            second = _relu(tl.dot(w_second, first.T) + bias2).to(first.dtype)
            third = _relu(tl.dot(w_third, second) + bias3)
            x = gmf + tl.sum(third * w_mlp, 0) + bias4
            tl.store(logit + sample, x, valid)
            label = tl.load(labels + sample, valid, other=-1.0)
            dx = tl.where(label >= 0, tl.sigmoid(x) - label, 0.0)
            dw_mlp += tl.sum(third * dx[None, :], 1)
            dthird = tl.where(third > 0, dx[None, :] * w_mlp, 0.0)
            db3 += tl.sum(dthird, 1)
            dw3 = tl.dot(dthird.to(first.dtype), second.T, dw3)
            dtwo = tl.where(second > 0, tl.dot(w_third.T, dthird.to(first.dtype)), 0.0)
            db2 += tl.sum(dtwo, 1)
            tl.store(dsecond + sample[None, :] * H2 + h2[:, None], dtwo.to(first.dtype), valid[None, :])
        # In the order of the parameters after w2: b2, w3, b3, w4 (its GMF part comes from `sum_segments`), b4 and loss
        # (both from `losses`).
        part = sums + tl.program_id(0) * width
        tl.store(part + h2, db2)
        tl.store(part + H2 + h3[:, None] * H2 + h2[None, :], dw3)
        part += H2 + H3 * H2
        tl.store(part + h3, db3)
        tl.store(part + H3 + tl.arange(0, G), tl.zeros([G], tl.float32))
        tl.store(part + H3 + G + h3, dw_mlp)

    @triton.jit(do_not_specialize=["count"])
    def tower_low(
        user_rows, item_rows, users, items, w2, dsecond, dfirst, sums,
        count, H1: tl.constexpr, H2: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr,
    ):  # fmt: skip
        """Backward pass through the second layer for a block of H1's columns; its weight's gradient stays on chip."""
        h1, h2 = (tl.program_id(0) % BLOCKS * (H1 // BLOCKS) + tl.arange(0, H1 // BLOCKS))[None, :], tl.arange(0, H2)
        w_second = tl.load(w2 + h2[:, None] * H1 + h1)
        dw2 = tl.zeros([H2, H1 // BLOCKS], tl.float32)
        row, step = tl.program_id(0) // BLOCKS, tl.num_programs(0) // BLOCKS * TILE
        sample = row * TILE + tl.arange(0, TILE)
        user, item = _load_ids(users, items, sample, count)
        a, c = _load_rows(user_rows, item_rows, user, item, sample, count, h1, H1)
        dtwo_next = tl.load(dsecond + sample[:, None] * H2 + h2[None, :], (sample < count)[:, None], other=0.0)
        user, item = _load_ids(users, items, sample + step, count)
        for start in range(row * TILE, count, step):
            sample = start + tl.arange(0, TILE)
            valid = (sample < count)[:, None]
            first, dtwo = _first_layer(a, c, item_rows), dtwo_next
            a, c = _load_rows(user_rows, item_rows, user, item, sample + step, count, h1, H1)
            following = (sample + step)[:, None]
            dtwo_next = tl.load(dsecond + following * H2 + h2[None, :], following < count, other=0.0)
            user, item = _load_ids(users, items, sample + 2 * step, count)
            dw2 = tl.dot(dtwo.T, first, dw2)
            dfirst_tile = tl.where(first > 0, tl.dot(dtwo, w_second), 0.0)
            tl.store(dfirst + sample[:, None].to(tl.int64) * H1 + h1, dfirst_tile.to(first.dtype), valid)
        tl.store(sums + row * H2 * H1 + h2[:, None] * H1 + h1, dw2)

    @triton.jit(do_not_specialize=["count"])
    def losses(logit, labels, dlogit, sums, count, width, TILE: tl.constexpr):
        """Loss and gradient of the logits; separate from `tower_top`, where many threads would hold each of them."""
        db4, loss = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
        for start in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
            sample = start + tl.arange(0, TILE)
            valid = sample < count
            x, label = tl.load(logit + sample, valid, other=0.0), tl.load(labels + sample, valid, other=-1.0)
            e = tl.exp(-tl.abs(x))
            loss += tl.where(label >= 0, tl.maximum(x, 0.0) - x * label + tl.log(1.0 + e), 0.0)
            dx = tl.where(label >= 0, tl.where(x >= 0, 1.0, e) / (1.0 + e) - label, 0.0)
            tl.store(dlogit + sample, dx, valid)
            db4 += dx
        end = sums + (tl.program_id(0) + 1) * width
        tl.store(end - 2, tl.sum(db4))
        tl.store(end - 1, tl.sum(loss))

    @triton.jit(do_not_specialize=["count", "rows_per_program"])
    def _sum_rows(parts, out, count, width, rows_per_program, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        first = tl.program_id(1) * rows_per_program
        end = tl.minimum(first + rows_per_program, count)
        total = tl.zeros([COLUMNS], tl.float32)
        for start in range(first, end, ROWS):
            row = (start + tl.arange(0, ROWS))[:, None]
            pointers = parts + row * width + column[None, :]
            total += tl.sum(tl.load(pointers, (row < end) & (column < width)[None, :], other=0.0).to(tl.float32), 0)
        tl.store(out + tl.program_id(1) * width + column, total, column < width)

    @triton.jit(do_not_specialize=["count"])
    def logits(
        user_rows, item_rows, gmf_user, gmf_item, items, w2, b2, w3, b3, w4, b4, out,
        count, per_user, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """The forward pass of `tower_top`; sample s belongs to user s // per_user."""
        h1, h2, h3 = tl.arange(0, H1)[None, :], tl.arange(0, H2), tl.arange(0, H3)
        w_second, w_third = tl.load(w2 + h2[:, None] * H1 + h1), tl.load(w3 + h3[:, None] * H2 + h2[None, :])
        bias2, bias3, bias4 = tl.load(b2 + h2)[:, None], tl.load(b3 + h3)[:, None], tl.load(b4)
        w_gmf, w_mlp = tl.load(w4 + tl.arange(0, G))[None, :], tl.load(w4 + G + h3)[:, None]
        for start in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
            sample = tl.minimum(start + tl.arange(0, TILE), count - 1)
            user, item = sample // per_user, tl.load(items + sample)
            gu, gi = _load_gmf(gmf_user, gmf_item, user, item, G)
            gmf = tl.sum(gu * gi * w_gmf, 1)
            a, c = _load_rows(user_rows, item_rows, user, item, sample, count, h1, H1)
            second = _relu(tl.dot(w_second, _first_layer(a, c, item_rows).T) + bias2).to(a.dtype)
            third = _relu(tl.dot(w_third, second) + bias3)
            # Past the end, the last logit is stored again.
            tl.store(out + sample, gmf + tl.sum(third * w_mlp, 0) + bias4)
