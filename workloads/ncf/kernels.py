"""NeuMF's Triton kernels, for any vendor that Triton serves, and what stands in for them elsewhere.

`PERFORMANCE.md` beside this says why the work is cut this way. Shapes: B samples, U users, I items, N rows of a table,
H1, H2, H3 the widths of the hidden layers, G GMF factors. Half types are bf16 or fp16; every sum is kept in fp32.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

Pair = tuple[Tensor, Tensor | None]  # one side's tensor and the other's
TILE = 64  # samples or rows a program works on at a time
SHARES = 2  # of the widest hidden layer's columns, each a program's
_WIDEST = (256, 128, 64)
_SHARED_BYTES = 160 << 10  # that the widest layers need


def available(tensor: Tensor) -> bool:
    """Whether Triton kernels run where the tensor is."""
    return triton is not None and tensor.device.type != "cpu"


def fits(device: torch.device, half: int, factors: int, widths: tuple[int, ...]) -> bool:
    """Whether the fused kernels can hold layers of these widths on chip."""
    sizes = (half, factors, *widths)
    return (
        len(widths) == len(_WIDEST)
        and all(size >= 16 and size & (size - 1) == 0 for size in sizes)
        and max(half, factors) <= 128
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
        _sum_runs[(count,)](values, width, order, starts, out, *[None] * 8, *sizes, num_warps=1, num_stages=1)
        return out
    values = values.float() if values.dtype != torch.float64 else values
    if order is None:
        order = torch.arange(values.shape[0], dtype=starts.dtype, device=values.device)
    return F.embedding_bag(order, values, starts, mode="sum", include_last_offset=True)


def row_gradients(
    values: Tensor, runs: Pair, gmf: tuple[Tensor, ...], scale: Tensor, out: Tensor, scaled: bool
) -> tuple[Tensor, Tensor]:
    """Sums values [B, D] over runs into out [N, D], times scale [] where `scaled`; returns the GMF table's gradient,
    and the output weight's [G], both times scale.

    runs: order (None: as they lie) and starts. gmf: dlogit [B], this side's table [N, G], the other's, the other's ids
    [B], output weight.
    """
    dgmf, count = torch.empty_like(gmf[1]), out.shape[0]
    rows, runs_each = (8, 4) if runs[0] is None else (32, 1)
    programs = -(-count // runs_each)
    dweight = dgmf.new_empty(programs, dgmf.shape[1]) if runs[0] is None else None
    sizes = count, out.shape[1], dgmf.shape[1], rows, runs_each, scaled
    args = values, values.stride(0), *runs, out, scale, *gmf, dgmf, dweight
    _sum_runs[(programs,)](*args, *sizes, num_warps=1, num_stages=1)
    return dgmf, None if dweight is None else dweight.sum(0) * scale


def project(table: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """dtype [N, H1]: table [N, D] times weight [H1, D] (a slice of columns, say) transposed, plus bias."""
    out = table.new_empty(table.shape[0], weight.shape[0], dtype=dtype)
    sizes = table.shape[0], weight.stride(0), table.shape[1], weight.shape[0], TILE
    _project[(programs_of(table) * 2,)](table, weight, bias, out, *sizes, num_warps=8, num_stages=1)
    return out


def project_backward(grad: Tensor, table: Tensor, weight: Tensor, scale: Tensor, sums: Tensor) -> Tensor:
    """The table's gradient fp32 [N, D] from its projection's half [N, H1], times scale; the weight's goes to sums
    [P, H1, D], unscaled, to be added over the programs.
    """
    out = torch.empty_like(table)
    sizes = table.shape[0], weight.stride(0), sums.stride(1), table.shape[1], grad.shape[1], TILE
    _project_backward[(sums.shape[0],)](grad, table, weight, scale, out, sums, *sizes, num_warps=8, num_stages=1)
    return out


def tower(first: Pair, gmf: Pair, batch: tuple[Tensor, ...], layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Forward, loss and backward of all but the first layer's product: (dfirst half [B, H1], dlogit fp32 [B], sums).

    first: half rows [U, H1] and [I, H1] to add by users and items, or [B, H1] and None. gmf: tables [U, G], [I, G].
    batch: users, items, labels. layers: weight and bias of H1 -> H2 -> H3 -> output. sums fp32: the gradients of
    `layers` in this order (the output weight's GMF part left 0), then the loss. Gradients are those of the sum of the
    losses, so that fp16 can hold them.
    """
    rows, samples, dtype, programs = first[0], batch[0].numel(), first[0].dtype, programs_of(first[0])
    (h2, h1), h3, g = layers[0].shape, layers[2].shape[0], gmf[0].shape[1]
    weights = (layers[0].to(dtype), layers[1], layers[2].to(dtype), *layers[3:])
    sums = rows.new_empty(programs, sum(layer.numel() for layer in layers) + 1, dtype=torch.float32)
    dlogit = rows.new_empty(samples, dtype=torch.float32)
    second, dfirst = rows.new_empty(samples, h2), rows.new_empty(samples, h1)
    sizes = samples, sums.shape[1], h1, h2, h3, g, TILE
    if not samples:  # the kernels read ahead
        return dfirst, dlogit, torch.zeros_like(sums[0])
    _tower_top[(programs,)](*first, *gmf, *batch, *weights, second, dlogit, sums, *sizes, num_warps=8, num_stages=1)
    low = *first, *batch[:2], weights[0], second, dfirst, sums, *sizes
    _tower_low[(programs * SHARES,)](*low, SHARES, num_warps=8, num_stages=1)
    return dfirst, dlogit, sums.sum(0)


def logits(first: Pair, gmf: Pair, items: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    """fp32 [n, k]: items int32 [n, k]; first half [n, H1] and [I, H1], gmf [n, G] and [I, G]; layers as in `tower`."""
    (h2, h1), h3, g, dtype = layers[0].shape, layers[2].shape[0], gmf[0].shape[1], first[0].dtype
    weights = (layers[0].to(dtype), layers[1], layers[2].to(dtype), *layers[3:])
    out = torch.empty_like(items, dtype=torch.float32)
    sizes = items.numel(), items.shape[1], h1, h2, h3, g, TILE
    _logits[(2 * programs_of(items),)](*first, *gmf, items, *weights, out, *sizes, num_warps=8, num_stages=1)
    return out


@lru_cache
def _properties(index: int) -> dict[str, int]:
    return dict(triton.runtime.driver.active.utils.get_device_properties(index))


if triton is not None:

    @triton.jit(do_not_specialize=["count"])
    def _sum_runs(
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
    def _project(
        table, weight, bias, out, count, stride, D: tl.constexpr, H1: tl.constexpr, ROWS: tl.constexpr
    ):
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
    def _project_backward(
        grad, table, weight, scale, dtable, sums, count, stride, wide,
        D: tl.constexpr, H1: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
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
    def _tower_top(
        user_rows, item_rows, gmf_user, gmf_item, users, items, labels, w2, b2, w3, b3, w4, b4, dsecond, dlogit, sums,
        count, width, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """Forward, loss, and backward down to the second layer's sums; keeps the small layers' gradients on chip."""
        h1, h2, h3 = tl.arange(0, H1)[None, :], tl.arange(0, H2), tl.arange(0, H3)
        w_second, w_third = tl.load(w2 + h2[:, None] * H1 + h1), tl.load(w3 + h3[:, None] * H2 + h2[None, :])
        bias2, bias3, bias4 = tl.load(b2 + h2)[:, None], tl.load(b3 + h3)[:, None], tl.load(b4)
        w_gmf, w_mlp = tl.load(w4 + tl.arange(0, G))[None, :], tl.load(w4 + G + h3)[:, None]
        dw3, db2 = tl.zeros([H3, H2], tl.float32), tl.zeros([H2], tl.float32)
        db3, dw_mlp = tl.zeros([H3], tl.float32), tl.zeros([H3], tl.float32)
        db4, loss = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
        step = tl.num_programs(0) * TILE
        sample = tl.program_id(0) * TILE + tl.arange(0, TILE)
        user, item = _load_ids(users, items, sample, count)
        a, c = _load_rows(user_rows, item_rows, user, item, sample, count, h1, H1)
        gu, gi = _load_gmf(gmf_user, gmf_item, user, item, G)
        user, item = _load_ids(users, items, sample + step, count)
        for start in range(tl.program_id(0) * TILE, count, step):
            sample = start + tl.arange(0, TILE)
            valid = sample < count
            gmf = tl.sum(gu * gi * w_gmf, 1)
            first = _first_layer(a, c, item_rows)
            # The next tile's rows are on their way while this one is computed, and the ids of the one after.
            a, c = _load_rows(user_rows, item_rows, user, item, sample + step, count, h1, H1)
            gu, gi = _load_gmf(gmf_user, gmf_item, user, item, G)
            user, item = _load_ids(users, items, sample + 2 * step, count)
            second = _relu(tl.dot(w_second, first.T) + bias2).to(first.dtype)
            third = _relu(tl.dot(w_third, second) + bias3)
            x = gmf + tl.sum(third * w_mlp, 0) + bias4
            label, e = tl.load(labels + sample, valid, other=0.0), tl.exp(-tl.abs(x))
            loss += tl.where(valid, tl.maximum(x, 0.0) - x * label + tl.log(1.0 + e), 0.0)
            dx = tl.where(valid, tl.where(x >= 0, 1.0, e) / (1.0 + e) - label, 0.0)
            tl.store(dlogit + sample, dx, valid)
            db4 += dx
            dw_mlp += tl.sum(third * dx[None, :], 1)
            dthird = tl.where(third > 0, dx[None, :] * w_mlp, 0.0)
            db3 += tl.sum(dthird, 1)
            dw3 = tl.dot(dthird.to(first.dtype), second.T, dw3)
            dtwo = tl.where(second > 0, tl.dot(w_third.T, dthird.to(first.dtype)), 0.0)
            db2 += tl.sum(dtwo, 1)
            tl.store(dsecond + sample[None, :] * H2 + h2[:, None], dtwo.to(first.dtype), valid[None, :])
        # In the order of the layers: w2 (from `_tower_low`), b2, w3, b3, w4 (of GMF: from `_sum_runs`), b4; the loss.
        part = sums + tl.program_id(0) * width + H2 * H1
        tl.store(part + h2, db2)
        tl.store(part + H2 + h3[:, None] * H2 + h2[None, :], dw3)
        part += H2 + H3 * H2
        tl.store(part + h3, db3)
        tl.store(part + H3 + tl.arange(0, G), tl.zeros([G], tl.float32))
        tl.store(part + H3 + G + h3, dw_mlp)
        tl.store(part + 2 * H3 + G, tl.sum(db4))
        tl.store(part + 2 * H3 + G + 1, tl.sum(loss))

    @triton.jit(do_not_specialize=["count"])
    def _tower_low(
        user_rows, item_rows, users, items, w2, dsecond, dfirst, sums,
        count, width, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr,
        SHARES: tl.constexpr,
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
        tl.store(sums + row * width + h2[:, None] * H1 + h1, dw2)

    @triton.jit(do_not_specialize=["count"])
    def _logits(
        user_rows, item_rows, gmf_user, gmf_item, items, w2, b2, w3, b3, w4, b4, out,
        count, per_user, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """The forward pass of `_tower_top`, for sample s of user s // per_user."""
        h1, h2, h3 = tl.arange(0, H1)[None, :], tl.arange(0, H2), tl.arange(0, H3)
        w_second, w_third = tl.load(w2 + h2[:, None] * H1 + h1), tl.load(w3 + h3[:, None] * H2 + h2[None, :])
        bias2, bias3, bias4 = tl.load(b2 + h2)[:, None], tl.load(b3 + h3)[:, None], tl.load(b4)
        w_gmf, w_mlp = tl.load(w4 + tl.arange(0, G))[None, :], tl.load(w4 + G + h3)[:, None]
        step = tl.num_programs(0) * TILE
        sample = tl.minimum(tl.program_id(0) * TILE + tl.arange(0, TILE), count - 1)
        user, item = sample // per_user, tl.load(items + sample)
        a, c = _load_rows(user_rows, item_rows, user, item, sample, count, h1, H1)
        gu, gi = _load_gmf(gmf_user, gmf_item, user, item, G)
        item = tl.load(items + tl.minimum(sample + step, count - 1))
        for start in range(tl.program_id(0) * TILE, count, step):
            sample = start + tl.arange(0, TILE)
            valid = sample < count
            gmf = tl.sum(gu * gi * w_gmf, 1)
            first = _first_layer(a, c, item_rows)
            user = tl.minimum(sample + step, count - 1) // per_user
            a, c = _load_rows(user_rows, item_rows, user, item, sample, count, h1, H1)
            gu, gi = _load_gmf(gmf_user, gmf_item, user, item, G)
            item = tl.load(items + tl.minimum(sample + 2 * step, count - 1))
            second = _relu(tl.dot(w_second, first.T) + bias2).to(first.dtype)
            third = _relu(tl.dot(w_third, second) + bias3)
            tl.store(out + sample, gmf + tl.sum(third * w_mlp, 0) + bias4, valid)
