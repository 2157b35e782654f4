"""NeuMF's Triton kernels, for any vendor that Triton serves, and what stands in for them elsewhere.

`PERFORMANCE.md` beside this says why the work is cut this way. Shapes: B samples, U users, I items, N rows of a table,
H1, H2, H3 the widths of the hidden layers, G GMF factors. Half types are bf16 or fp16; every sum is kept in fp32.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.nn.triton_support import available as available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

Pair = tuple[Tensor, Tensor | None]  # one side's tensor and the other's
TILE = 64  # samples or rows a program works on at a time
_SHARED_ROWS = 128  # parts that a tall matrix is first added up to
SHARES = 4  # of the widest hidden layer's columns, each a program's
_WIDEST = (256, 128, 64)
_SHARED_BYTES = 160 << 10  # that the widest layers need


@lru_cache
def fits(device: torch.device, half: int, factors: int, *widths: int) -> bool:
    """Whether the fused kernels can hold embeddings and hidden layers of these widths on chip."""
    sizes = (half, factors, *widths)
    return (
        len(widths) == len(_WIDEST)
        and all(size >= 16 and size & (size - 1) == 0 for size in sizes)
        and max(half, factors) <= 128
        and widths[0] >= 16 * SHARES
        and all(width <= widest for width, widest in zip(widths, _WIDEST, strict=True))
        and _properties(device.index)["max_shared_mem"] >= _SHARED_BYTES
    )


def programs_of(tensor: Tensor) -> int:
    """Programs that run at once where one fills a multiprocessor of the tensor's device."""
    return _properties(tensor.device.index)["multiprocessor_count"]


def segment_sum(values: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
    """fp32 [N, D] (fp64 for fp64): out[n] = sum of values[order[starts[n]:starts[n+1]]]; order None is the identity."""
    width, count = values.shape[1], starts.numel() - 1
    if available(values) and width & (width - 1) == 0:
        out = values.new_empty(count, width, dtype=torch.float32)
        sizes = count, width, 1, 8, 1, False
        sum_runs[(count,)](values, width, order, starts, out, *[None] * 8, *sizes, num_warps=1, num_stages=1)
        return out
    values = values.float() if values.dtype != torch.float64 else values
    if order is None:
        order = torch.arange(values.shape[0], dtype=starts.dtype, device=values.device)
    return F.embedding_bag(order, values, starts, mode="sum", include_last_offset=True)


def add_parts(parts: Tensor, out: Tensor) -> Tensor:
    """out fp32, of parts[0]'s shape, becomes the sum of parts [P, ...] over P, in a fixed order."""
    count, width = parts.shape[0], parts[0].numel()
    if count > 1024:  # PyTorch's sum over the rows of a tall matrix has too few programs
        some = parts.new_empty(_SHARED_ROWS, width, dtype=torch.float32)
        grid = (-(-width // 128), _SHARED_ROWS)
        _add_rows[grid](parts, some, count, width, -(-count // _SHARED_ROWS), 32, 128, num_warps=4)
        parts = some.view(_SHARED_ROWS, *out.shape)
    return torch.sum(parts, 0, out=out)


@lru_cache
def _properties(index: int) -> dict[str, int]:
    return dict(triton.runtime.driver.active.utils.get_device_properties(index))


if triton is not None:

    @triton.jit(do_not_specialize=["count"])
    def sum_runs(
        values, stride, order, starts, out, scale, dlogit, mine, others, other_ids, weight, dgmf, dweight,
        count, D: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, RUNS: tl.constexpr, SCALED: tl.constexpr,
    ):  # fmt: skip
        """RUNS runs a program, ROWS samples at a time: out[n] = sum of values over run n; with the sum of dlogit *
        others[other_ids] the gradients of this side's GMF row n, and of the weight: a part a program.
        """
        d, g = tl.arange(0, D), tl.arange(0, G)
        first = tl.program_id(0) * RUNS
        dw = tl.zeros([G], tl.float32)
        for n in range(first, tl.minimum(first + RUNS, count)):
            total, gmf = tl.zeros([D], tl.float32), tl.zeros([G], tl.float32)
            end = tl.load(starts + n + 1)
            for at in range(tl.load(starts + n), end, ROWS):
                sample = at + tl.arange(0, ROWS)
                valid = sample < end
                if order is not None:
                    sample = tl.load(order + sample, valid, other=0)
                place = values + sample[:, None].to(tl.int64) * stride + d[None, :]
                total += tl.sum(tl.load(place, valid[:, None], other=0.0).to(tl.float32), 0)
                if dgmf is not None:
                    other = tl.load(other_ids + sample, valid, other=0)
                    row = tl.load(others + other[:, None] * G + g[None, :], valid[:, None], other=0.0)
                    gmf += tl.sum(row * tl.load(dlogit + sample, valid, other=0.0)[:, None], 0)
            if SCALED:
                total *= tl.load(scale)
            tl.store(out + n * D + d, total.to(out.dtype.element_ty))
            if dgmf is not None:
                tl.store(dgmf + n * G + g, gmf * tl.load(weight + g) * tl.load(scale))
            if dweight is not None:
                dw += gmf * tl.load(mine + n * G + g)
        if dweight is not None:
            tl.store(dweight + tl.program_id(0) * G + g, dw)

    @triton.jit(do_not_specialize=["count"])
    def project(table, weight, bias, out, count, stride, D: tl.constexpr, H1: tl.constexpr, ROWS: tl.constexpr):
        """out[N, H1] = table [N, D] times weight [H1, D] transposed, plus bias; ROWS rows a program at a time."""
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
        grad, table, weight, scale, dtable, sums, count, stride, wide,
        D: tl.constexpr, H1: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """dtable = grad times weight, scaled; the weight's gradient, unscaled: a part a program."""
        d, h = tl.arange(0, D), tl.arange(0, H1)
        half = grad.dtype.element_ty
        w = tl.load(weight + h[:, None] * stride + d[None, :]).to(half)
        by = tl.load(scale)
        dweight = tl.zeros([H1, D], tl.float32)
        for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS)
            valid = (row < count)[:, None]
            dy = tl.load(grad + row[:, None] * H1 + h[None, :], valid, other=0.0)
            x = tl.load(table + row[:, None] * D + d[None, :], valid, other=0.0).to(half)
            tl.store(dtable + row[:, None] * D + d[None, :], tl.dot(dy, w) * by, valid)
            dweight = tl.dot(dy.T, x, dweight)
        tl.store(sums + (tl.program_id(0) * H1 + h[:, None]) * wide + d[None, :], dweight)

    @triton.jit
    def _relu(x):
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def _load_ids(users, items, sample, count):
        sample = tl.minimum(sample, count - 1)  # past the end, copies of the last sample
        return tl.load(users + sample), tl.load(items + sample)

    @triton.jit
    def _load_rows(user_rows, item_rows, user, item, sample, count, h, H1: tl.constexpr):
        """Columns h [1, .] of the two rows whose sum is the first layer's, or twice that of the sample's own."""
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
        """Forward, loss, and backward down to the second layer's sums; keeps the small layers' gradients on chip."""
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
            dx = tl.where(valid, tl.sigmoid(x) - tl.load(labels + sample, valid, other=0.0), 0.0)
            dw_mlp += tl.sum(third * dx[None, :], 1)
            dthird = tl.where(third > 0, dx[None, :] * w_mlp, 0.0)
            db3 += tl.sum(dthird, 1)
            dw3 = tl.dot(dthird.to(first.dtype), second.T, dw3)
            dtwo = tl.where(second > 0, tl.dot(w_third.T, dthird.to(first.dtype)), 0.0)
            db2 += tl.sum(dtwo, 1)
            tl.store(dsecond + sample[None, :] * H2 + h2[:, None], dtwo.to(first.dtype), valid[None, :])
        # In the order of the layers after w2: b2, w3, b3, w4 (of GMF: from `sum_runs`), b4 and the loss (`losses`).
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
        count, H1: tl.constexpr, H2: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
    ):  # fmt: skip
        """Backward through the second layer for a share of H1's columns; its weight's gradient stays on chip."""
        h1, h2 = (tl.program_id(0) % SHARES * (H1 // SHARES) + tl.arange(0, H1 // SHARES))[None, :], tl.arange(0, H2)
        w_second = tl.load(w2 + h2[:, None] * H1 + h1)
        dw2 = tl.zeros([H2, H1 // SHARES], tl.float32)
        row, step = tl.program_id(0) // SHARES, tl.num_programs(0) // SHARES * TILE
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
            done = tl.where(first > 0, tl.dot(dtwo, w_second), 0.0)
            tl.store(dfirst + sample[:, None].to(tl.int64) * H1 + h1, done.to(first.dtype), valid)
        tl.store(sums + row * H2 * H1 + h2[:, None] * H1 + h1, dw2)

    @triton.jit(do_not_specialize=["count"])
    def losses(logit, labels, dlogit, sums, count, width, TILE: tl.constexpr):
        """The loss and its gradient by the logits. Apart, because in `tower_top` each is held by many threads."""
        db4, loss = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
        for start in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
            sample = start + tl.arange(0, TILE)
            valid = sample < count
            x, label = tl.load(logit + sample, valid, other=0.0), tl.load(labels + sample, valid, other=0.0)
            e = tl.exp(-tl.abs(x))
            loss += tl.where(valid, tl.maximum(x, 0.0) - x * label + tl.log(1.0 + e), 0.0)
            dx = tl.where(valid, tl.where(x >= 0, 1.0, e) / (1.0 + e) - label, 0.0)
            tl.store(dlogit + sample, dx, valid)
            db4 += dx
        end = sums + (tl.program_id(0) + 1) * width
        tl.store(end - 2, tl.sum(db4))
        tl.store(end - 1, tl.sum(loss))

    @triton.jit(do_not_specialize=["count", "share"])
    def _add_rows(parts, out, count, width, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        first = tl.program_id(1) * share
        end = tl.minimum(first + share, count)
        total = tl.zeros([COLUMNS], tl.float32)
        for start in range(first, end, ROWS):
            row = (start + tl.arange(0, ROWS))[:, None]
            place = parts + row * width + column[None, :]
            total += tl.sum(tl.load(place, (row < end) & (column < width)[None, :], other=0.0).to(tl.float32), 0)
        tl.store(out + tl.program_id(1) * width + column, total, column < width)

    @triton.jit(do_not_specialize=["count"])
    def logits(
        user_rows, item_rows, gmf_user, gmf_item, items, w2, b2, w3, b3, w4, b4, out,
        count, per_user, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """The forward pass of `tower_top`, for sample s of user s // per_user."""
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
            # Past the end, the last logit again.
            tl.store(out + sample, gmf + tl.sum(third * w_mlp, 0) + bias4)
