"""NeuMF's layers after the first one as Triton kernels, which also compute the loss and its gradients.

Shapes: B samples, U users, I items, H1, H2, H3 sizes of the hidden layers, G GMF dimension, P programs. "Half" means
bf16 or fp16; sums are accumulated in fp32 and in a fixed order.
"""

import torch
from torch import Tensor

from ...runner.hardware import devices
from ..common.nn.triton_support import tl, triton
from .segment_sums import sum_parts

COLUMN_BLOCKS = 4  # blocks of the first hidden layer's columns, each processed by a program
_BLOCK_B = 64  # samples that a program processes at a time

Pair = tuple[Tensor, Tensor | None]
"""The tensors of users and items; or one tensor for the samples, and None."""


def tower_gradients(
    first: Pair,
    gmf: tuple[Tensor, Tensor],
    users: Tensor,
    items: Tensor,
    labels: Tensor,
    layers: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Run forward and backward pass of all but the first layer; return (dfirst half [B, H1], dlogit fp32 [B], sums).

    first: projected tables, half [U, H1] and [I, H1], or the samples' [B, H1] and None. gmf: tables fp32 [U, G] and
    [I, G]. users, items int32 [B]; labels fp32 [B], negative for samples that do not count. layers: weight and bias of
    H1 -> H2 -> H3 -> output, fp32. sums fp32: the gradients of `layers` in this order (0 for the GMF part of the output
    weight), then the loss. Gradients are those of the summed, unscaled loss, so that fp16 can hold them.
    """
    rows, samples, dtype = first[0], users.numel(), first[0].dtype
    w2, b2, w3, b3, w4, b4 = layers
    (h2, h1), h3, g = w2.shape, w3.shape[0], gmf[0].shape[1]
    # Each program writes a part of the sums, so there are no more of them than tiles of samples.
    programs = max(1, min(devices.num_multiprocessors(rows.device), -(-samples // _BLOCK_B)))
    width = sum(layer.numel() for layer in layers[1:]) + 1
    top, low = (rows.new_empty(parts, dtype=torch.float32) for parts in ((2 * programs, width), (programs, h2 * h1)))
    logit, dlogit = (rows.new_empty(samples, dtype=torch.float32) for _ in range(2))
    dsecond, dfirst = rows.new_empty(samples, h2), rows.new_empty(samples, h1)
    sums = low.new_zeros(low.shape[1] + width)
    if not samples:  # the kernels prefetch, so they need at least one sample
        return dfirst, dlogit, sums
    half_w2 = w2.to(dtype)
    _tower_top[(2 * programs,)](
        user_rows_ptr=rows,
        item_rows_ptr=first[1],
        gmf_user_ptr=gmf[0],
        gmf_item_ptr=gmf[1],
        users_ptr=users,
        items_ptr=items,
        labels_ptr=labels,
        w2_ptr=half_w2,
        b2_ptr=b2,
        w3_ptr=w3.to(dtype),
        b3_ptr=b3,
        w4_ptr=w4,
        b4_ptr=b4,
        dsecond_ptr=dsecond,
        logit_ptr=logit,
        sums_ptr=top,
        num_samples=samples,
        part_stride=width,
        H1=h1,
        H2=h2,
        H3=h3,
        G=g,
        BLOCK_B=_BLOCK_B,
        num_warps=4,
        num_stages=1,
    )
    _losses[(2 * programs,)](
        logit_ptr=logit,
        labels_ptr=labels,
        dlogit_ptr=dlogit,
        sums_ptr=top,
        num_samples=samples,
        part_stride=width,
        BLOCK_B=16 * _BLOCK_B,
    )
    _tower_low[(programs * COLUMN_BLOCKS,)](
        user_rows_ptr=rows,
        item_rows_ptr=first[1],
        users_ptr=users,
        items_ptr=items,
        w2_ptr=half_w2,
        dsecond_ptr=dsecond,
        dfirst_ptr=dfirst,
        sums_ptr=low,
        num_samples=samples,
        H1=h1,
        H2=h2,
        BLOCK_B=_BLOCK_B,
        BLOCKS=COLUMN_BLOCKS,
        num_warps=4,
        num_stages=1,
    )
    sum_parts(low, sums[: low.shape[1]])
    sum_parts(top, sums[low.shape[1] :])
    return dfirst, dlogit, sums


def tower_logits(
    first: tuple[Tensor, Tensor], gmf: tuple[Tensor, Tensor], items: Tensor, layers: tuple[Tensor, ...]
) -> Tensor:
    """Return fp32 logits [n, k] of items int32 [n, k].

    first: half [n, H1] and [I, H1]; gmf: fp32 [n, G] and [I, G]; layers as in `tower_gradients`.
    """
    w2, b2, w3, b3, w4, b4 = layers
    out = torch.empty_like(items, dtype=torch.float32)
    _logits[(2 * devices.num_multiprocessors(items.device),)](
        user_rows_ptr=first[0],
        item_rows_ptr=first[1],
        gmf_user_ptr=gmf[0],
        gmf_item_ptr=gmf[1],
        items_ptr=items,
        w2_ptr=w2.to(first[0].dtype),
        b2_ptr=b2,
        w3_ptr=w3.to(first[0].dtype),
        b3_ptr=b3,
        w4_ptr=w4,
        b4_ptr=b4,
        out_ptr=out,
        num_samples=items.numel(),
        items_per_user=items.shape[1],
        H1=w2.shape[1],
        H2=w2.shape[0],
        H3=w3.shape[0],
        G=gmf[0].shape[1],
        BLOCK_B=_BLOCK_B,
        num_warps=8,
        num_stages=1,
    )
    return out


@triton.jit
def _relu(logit):
    return tl.maximum(logit, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _load_ids(users_ptr, items_ptr, sample, num_samples):
    sample = tl.minimum(sample, num_samples - 1)  # past the end: the last sample again
    return tl.load(users_ptr + sample), tl.load(items_ptr + sample)


@triton.jit
def _load_rows(user_rows_ptr, item_rows_ptr, user, item, sample, num_samples, h, H1: tl.constexpr):
    """Return columns h [1, .] of the user and item rows; without `item_rows_ptr`, the sample's own row twice."""
    if item_rows_ptr is None:
        row = tl.load(user_rows_ptr + tl.minimum(sample, num_samples - 1).to(tl.int64)[:, None] * H1 + h)
        return row, row
    else:
        user, item = user.to(tl.int64)[:, None], item.to(tl.int64)[:, None]
        return tl.load(user_rows_ptr + user * H1 + h), tl.load(item_rows_ptr + item * H1 + h)


@triton.jit
def _first_layer(user_row, item_row, item_rows_ptr):
    total = user_row.to(tl.float32)
    if item_rows_ptr is not None:
        total += item_row.to(tl.float32)
    return _relu(total).to(user_row.dtype)


@triton.jit
def _load_gmf(gmf_user_ptr, gmf_item_ptr, user, item, G: tl.constexpr):
    g, user, item = tl.arange(0, G)[None, :], user.to(tl.int64)[:, None], item.to(tl.int64)[:, None]
    return tl.load(gmf_user_ptr + user * G + g), tl.load(gmf_item_ptr + item * G + g)


@triton.jit(do_not_specialize=["num_samples"])
def _tower_top(
    user_rows_ptr, item_rows_ptr, gmf_user_ptr, gmf_item_ptr, users_ptr, items_ptr, labels_ptr, w2_ptr, b2_ptr, w3_ptr,
    b3_ptr, w4_ptr, b4_ptr, dsecond_ptr, logit_ptr, sums_ptr, num_samples, part_stride, H1: tl.constexpr,
    H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Forward pass and backward pass down to the second layer; keeps the gradients of the small layers on chip."""
    h1, h2, h3 = tl.arange(0, H1)[None, :], tl.arange(0, H2), tl.arange(0, H3)
    w2, w3 = tl.load(w2_ptr + h2[:, None] * H1 + h1), tl.load(w3_ptr + h3[:, None] * H2 + h2[None, :])
    b2, b3, b4 = tl.load(b2_ptr + h2)[:, None], tl.load(b3_ptr + h3)[:, None], tl.load(b4_ptr)
    w_gmf, w_mlp = tl.load(w4_ptr + tl.arange(0, G))[None, :], tl.load(w4_ptr + G + h3)[:, None]
    dw3, db2 = tl.zeros([H3, H2], tl.float32), tl.zeros([H2], tl.float32)
    db3, dw_mlp = tl.zeros([H3], tl.float32), tl.zeros([H3], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_B, num_samples, tl.num_programs(0) * BLOCK_B):
        sample = start + tl.arange(0, BLOCK_B)
        valid = sample < num_samples
        user, item = _load_ids(users_ptr, items_ptr, sample, num_samples)
        gmf_user, gmf_item = _load_gmf(gmf_user_ptr, gmf_item_ptr, user, item, G)
        gmf = tl.sum(gmf_user * gmf_item * w_gmf, 1)
        user_row, item_row = _load_rows(user_rows_ptr, item_rows_ptr, user, item, sample, num_samples, h1, H1)
        first = _first_layer(user_row, item_row, item_rows_ptr)
        second = _relu(tl.dot(w2, first.T) + b2).to(first.dtype)
        third = _relu(tl.dot(w3, second) + b3)
        logit = gmf + tl.sum(third * w_mlp, 0) + b4
        tl.store(logit_ptr + sample, logit, valid)
        label = tl.load(labels_ptr + sample, valid, other=-1.0)
        dlogit = tl.where(label >= 0, tl.sigmoid(logit) - label, 0.0)
        dw_mlp += tl.sum(third * dlogit[None, :], 1)
        dthird = tl.where(third > 0, dlogit[None, :] * w_mlp, 0.0)
        db3 += tl.sum(dthird, 1)
        dw3 = tl.dot(dthird.to(first.dtype), second.T, dw3)
        dsecond = tl.where(second > 0, tl.dot(w3.T, dthird.to(first.dtype)), 0.0)
        db2 += tl.sum(dsecond, 1)
        offset = sample.to(tl.int64)[None, :] * H2 + h2[:, None]
        tl.store(dsecond_ptr + offset, dsecond.to(first.dtype), valid[None, :])
    # In the order of the parameters after w2: b2, w3, b3, w4 (its GMF part comes from `sum_gradients`), b4 and loss
    # (both from `_losses`).
    part = sums_ptr + tl.program_id(0) * part_stride
    tl.store(part + h2, db2)
    tl.store(part + H2 + h3[:, None] * H2 + h2[None, :], dw3)
    part += H2 + H3 * H2
    tl.store(part + h3, db3)
    tl.store(part + H3 + tl.arange(0, G), tl.zeros([G], tl.float32))
    tl.store(part + H3 + G + h3, dw_mlp)


@triton.jit(do_not_specialize=["num_samples"])
def _tower_low(
    user_rows_ptr, item_rows_ptr, users_ptr, items_ptr, w2_ptr, dsecond_ptr, dfirst_ptr, sums_ptr, num_samples,
    H1: tl.constexpr, H2: tl.constexpr, BLOCK_B: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Backward pass through the second layer for a block of H1's columns; its weight's gradient stays on chip."""
    h1, h2 = (tl.program_id(0) % BLOCKS * (H1 // BLOCKS) + tl.arange(0, H1 // BLOCKS))[None, :], tl.arange(0, H2)
    w2 = tl.load(w2_ptr + h2[:, None] * H1 + h1)
    dw2 = tl.zeros([H2, H1 // BLOCKS], tl.float32)
    row, step = tl.program_id(0) // BLOCKS, tl.num_programs(0) // BLOCKS * BLOCK_B
    sample = row * BLOCK_B + tl.arange(0, BLOCK_B)
    user, item = _load_ids(users_ptr, items_ptr, sample, num_samples)
    user_row, item_row = _load_rows(user_rows_ptr, item_rows_ptr, user, item, sample, num_samples, h1, H1)
    offset = sample.to(tl.int64)[:, None] * H2 + h2[None, :]
    next_dsecond = tl.load(dsecond_ptr + offset, (sample < num_samples)[:, None], other=0.0)
    user, item = _load_ids(users_ptr, items_ptr, sample + step, num_samples)
    for start in range(row * BLOCK_B, num_samples, step):
        sample = start + tl.arange(0, BLOCK_B)
        valid = (sample < num_samples)[:, None]
        first, dsecond = _first_layer(user_row, item_row, item_rows_ptr), next_dsecond
        user_row, item_row = _load_rows(user_rows_ptr, item_rows_ptr, user, item, sample + step, num_samples, h1, H1)
        following = (sample + step).to(tl.int64)[:, None]
        next_dsecond = tl.load(dsecond_ptr + following * H2 + h2[None, :], following < num_samples, other=0.0)
        user, item = _load_ids(users_ptr, items_ptr, sample + 2 * step, num_samples)
        dw2 = tl.dot(dsecond.T, first, dw2)
        dfirst = tl.where(first > 0, tl.dot(dsecond, w2), 0.0)
        tl.store(dfirst_ptr + sample[:, None].to(tl.int64) * H1 + h1, dfirst.to(first.dtype), valid)
    tl.store(sums_ptr + row * H2 * H1 + h2[:, None] * H1 + h1, dw2)


@triton.jit(do_not_specialize=["num_samples"])
def _losses(logit_ptr, labels_ptr, dlogit_ptr, sums_ptr, num_samples, part_stride, BLOCK_B: tl.constexpr):
    """Loss and gradient of the logits; separate from `_tower_top`, where many threads would hold each of them."""
    db4, loss = tl.zeros([BLOCK_B], tl.float32), tl.zeros([BLOCK_B], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_B, num_samples, tl.num_programs(0) * BLOCK_B):
        sample = start + tl.arange(0, BLOCK_B)
        valid = sample < num_samples
        logit, label = tl.load(logit_ptr + sample, valid, other=0.0), tl.load(labels_ptr + sample, valid, other=-1.0)
        e = tl.exp(-tl.abs(logit))
        loss += tl.where(label >= 0, tl.maximum(logit, 0.0) - logit * label + tl.log(1.0 + e), 0.0)
        dlogit = tl.where(label >= 0, tl.where(logit >= 0, 1.0, e) / (1.0 + e) - label, 0.0)
        tl.store(dlogit_ptr + sample, dlogit, valid)
        db4 += dlogit
    end = sums_ptr + (tl.program_id(0) + 1) * part_stride
    tl.store(end - 2, tl.sum(db4))
    tl.store(end - 1, tl.sum(loss))


@triton.jit(do_not_specialize=["num_samples"])
def _logits(
    user_rows_ptr, item_rows_ptr, gmf_user_ptr, gmf_item_ptr, items_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr, w4_ptr, b4_ptr,
    out_ptr, num_samples, items_per_user, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, G: tl.constexpr,
    BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The forward pass of `_tower_top`; sample s belongs to user s // items_per_user."""
    h1, h2, h3 = tl.arange(0, H1)[None, :], tl.arange(0, H2), tl.arange(0, H3)
    w2, w3 = tl.load(w2_ptr + h2[:, None] * H1 + h1), tl.load(w3_ptr + h3[:, None] * H2 + h2[None, :])
    b2, b3, b4 = tl.load(b2_ptr + h2)[:, None], tl.load(b3_ptr + h3)[:, None], tl.load(b4_ptr)
    w_gmf, w_mlp = tl.load(w4_ptr + tl.arange(0, G))[None, :], tl.load(w4_ptr + G + h3)[:, None]
    for start in range(tl.program_id(0) * BLOCK_B, num_samples, tl.num_programs(0) * BLOCK_B):
        sample = tl.minimum(start + tl.arange(0, BLOCK_B), num_samples - 1)
        user, item = sample // items_per_user, tl.load(items_ptr + sample)
        gmf_user, gmf_item = _load_gmf(gmf_user_ptr, gmf_item_ptr, user, item, G)
        gmf = tl.sum(gmf_user * gmf_item * w_gmf, 1)
        user_row, item_row = _load_rows(user_rows_ptr, item_rows_ptr, user, item, sample, num_samples, h1, H1)
        second = _relu(tl.dot(w2, _first_layer(user_row, item_row, item_rows_ptr).T) + b2).to(user_row.dtype)
        third = _relu(tl.dot(w3, second) + b3)
        # Past the end, the last logit is stored again.
        tl.store(out_ptr + sample, gmf + tl.sum(third * w_mlp, 0) + b4)
