"""NeuMF (He et al. 2017, arXiv:1708.05031) of MLPerf Training v0.5, for large batches sorted by user.

Shapes: B samples, U users, I items, N rows of a table, D MLP embedding size, G GMF dimension, H1, H2, H3 sizes of the
hidden layers, P programs. "Half" means bf16 or fp16.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..common.nn.eager import keep_eager
from . import kernels

_SCORE_CHUNK = 1 << 20  # samples scored at a time without the kernels


class NeuMF(nn.Module):
    """Generalized matrix factorization (GMF) and an MLP over user and item embeddings, one logit per sample.

    `mlp_layer_sizes` are the input size of the MLP, which is the size of both embeddings together, and its layers.
    """

    def __init__(self, num_users: int, num_items: int, mf_dim: int, mlp_layer_sizes: Sequence[int]) -> None:
        super().__init__()
        if len(mlp_layer_sizes) < 2 or mlp_layer_sizes[0] % 2:
            raise ValueError(
                f"mlp_layer_sizes={list(mlp_layer_sizes)}: set an even input size and at least one hidden layer."
            )
        mlp_dim = mlp_layer_sizes[0] // 2
        self.gmf_user, self.gmf_item = nn.Embedding(num_users, mf_dim), nn.Embedding(num_items, mf_dim)
        self.mlp_user, self.mlp_item = nn.Embedding(num_users, mlp_dim), nn.Embedding(num_items, mlp_dim)
        hidden = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(mlp_layer_sizes)]
        self.hidden = nn.ModuleList(hidden)
        self.output = nn.Linear(mf_dim + mlp_layer_sizes[-1], 1)
        self._sizes = (mlp_dim, mf_dim, *mlp_layer_sizes[1:])
        for table in (self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item):
            nn.init.normal_(table.weight, std=0.01)
        for layer in hidden:
            nn.init.xavier_uniform_(layer.weight)
        bound = math.sqrt(3 / self.output.in_features)
        nn.init.uniform_(self.output.weight, -bound, bound)

    def keep_users(self, users: range) -> None:
        """Drop the rows of all other users, and number these from 0."""
        for name in ("gmf_user", "mlp_user"):
            rows = getattr(self, name).weight.detach()[users.start : users.stop].clone()
            setattr(self, name, nn.Embedding.from_pretrained(rows, freeze=False))

    def forward(
        self, users: Tensor, items: Tensor, labels: Tensor, by_item: Tensor, user_starts: Tensor, item_starts: Tensor
    ) -> Tensor:
        """Return the fp32 sum of the binary cross entropy over B samples; B may be 0.

        users int32 [B] ascend, items int32 [B], labels float32 [B]; by_item int32 [B] sorts the samples by item;
        user_starts int32 [U + 1] and item_starts int32 [I + 1] are where the segments of equal ids start in each order.
        Samples with the label `kernels.IGNORED` do not count.
        """
        batch = (users, items, labels, by_item, user_starts, item_starts)
        if dtype := self._fused_dtype(users):
            return _fused_loss(dtype, self._projects_tables(users), batch, self._parameter_list())
        by_user, by_item_ids = (users, None, user_starts), (items, by_item, item_starts)
        gmf = _Lookup.apply(self.gmf_user.weight, *by_user) * _Lookup.apply(self.gmf_item.weight, *by_item_ids)
        user_weight, item_weight = self._first_layer.weight.chunk(2, 1)
        sides = [
            (self.mlp_user.weight, user_weight, self._first_layer.bias, by_user),
            (self.mlp_item.weight, item_weight, None, by_item_ids),
        ]
        if self._projects_tables(users):
            parts = [_Lookup.apply(F.linear(table, weight, bias), *ids) for table, weight, bias, ids in sides]
        else:
            parts = [F.linear(_Lookup.apply(table, *ids), weight, bias) for table, weight, bias, ids in sides]
        counts = (labels != kernels.IGNORED).float()
        logits = self._logits(gmf, parts[0] + parts[1])
        return F.binary_cross_entropy_with_logits(logits, labels, counts, reduction="sum")

    @torch.no_grad()
    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the fp32 logits [n, k] of the items int32 [n, k] for the users int32 [n]."""
        if dtype := self._fused_dtype(users):
            return _fused_scores(dtype, users, items, self._parameter_list())
        user_weight, item_weight = self._first_layer.weight.chunk(2, 1)
        projected_items = F.linear(self.mlp_item.weight, item_weight)
        chunk_rows = max(1, _SCORE_CHUNK // max(1, items.shape[1]))
        logits = []
        for chunk_users, chunk_items in zip(users.split(chunk_rows), items.split(chunk_rows), strict=True):
            gmf = self.gmf_user(chunk_users)[:, None] * self.gmf_item(chunk_items)
            first = F.linear(self.mlp_user(chunk_users), user_weight, self._first_layer.bias)[:, None]
            logits.append(self._logits(gmf, first + projected_items[chunk_items]))
        return torch.cat(logits)

    @property
    def _first_layer(self) -> nn.Linear:
        layer = self.hidden[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def _projects_tables(self, users: Tensor) -> bool:
        """Return whether to apply the first layer to the tables instead of each sample's rows.

        The first layer is linear in the concatenated embeddings, so this saves work if the tables have fewer rows than
        the batch looks up.
        """
        return self.gmf_user.num_embeddings + self.gmf_item.num_embeddings <= 2 * users.numel()

    @keep_eager
    def _fused_dtype(self, tensor: Tensor) -> torch.dtype | None:
        """Return the dtype of the fused kernels if they can run: under autocast, for layers that fit on chip.

        They are not used in a dispatch mode, since one that counts operations would not see them.
        """
        device = tensor.device.type
        if is_in_torch_dispatch_mode() or not kernels.triton_available(tensor) or not torch.is_autocast_enabled(device):
            return None
        return torch.get_autocast_dtype(device) if kernels.fits_on_chip(tensor.device, *self._sizes) else None

    def _parameter_list(self) -> tuple[Tensor, ...]:
        tables = (self.gmf_user.weight, self.gmf_item.weight, self.mlp_user.weight, self.mlp_item.weight)
        return *tables, *(value for layer in (*self.hidden, self.output) for value in (layer.weight, layer.bias))

    def _logits(self, gmf: Tensor, first: Tensor) -> Tensor:
        """Return logits [...] from the GMF product [..., G] and the first layer [..., H1]; fp32 under autocast too."""
        x = F.relu(first)
        for layer in self.hidden[1:]:
            x = F.relu(layer(x))
        with torch.autocast(gmf.device.type, enabled=False):
            weight, bias = self.output.weight, self.output.bias
            features = torch.cat([gmf.to(weight.dtype), x.to(weight.dtype)], -1)
            return F.linear(features, weight, bias).squeeze(-1)


class _Lookup(torch.autograd.Function):
    """table[ids], with a gradient by segment sums: no atomics, and every row is written once."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
        ctx.save_for_backward(order, starts)
        return table.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order, starts = ctx.saved_tensors
        return kernels.segment_sum(grad.contiguous(), order, starts).to(grad.dtype), None, None, None


@keep_eager
def _fused_loss(
    dtype: torch.dtype, projects_tables: bool, batch: tuple[Tensor, ...], parameters: tuple[Tensor, ...]
) -> Tensor:
    return _FusedLoss.apply(dtype, projects_tables, *batch, *parameters)


@keep_eager
def _fused_scores(dtype: torch.dtype, users: Tensor, items: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
    gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
    mlp_dim = mlp_user.shape[1]
    first = (
        _project(mlp_user[users], weight[:, :mlp_dim], bias, dtype),
        _project(mlp_item, weight[:, mlp_dim:], None, dtype),
    )
    return _fused_logits(first, (gmf_user[users], gmf_item), items.contiguous(), tuple(layers))


class _FusedLoss(torch.autograd.Function):
    """The loss by the fused kernels.

    The forward pass also computes the gradients of the activations, for an unscaled loss, so that fp16 can hold them.
    The backward pass applies the loss scale where it sums them in fp32.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, projects_tables: bool, *tensors: Tensor) -> Tensor:
        batch, parameters = tensors[:6], tensors[6:]
        users, items, labels = batch[:3]
        gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
        mlp_dim = mlp_user.shape[1]
        rows = None
        first: kernels.Pair
        if projects_tables:
            first = (
                _project(mlp_user, weight[:, :mlp_dim], bias, dtype),
                _project(mlp_item, weight[:, mlp_dim:], None, dtype),
            )
        else:
            rows = torch.cat([mlp_user[users], mlp_item[items]], 1).to(dtype)
            first = F.linear(rows, weight.to(dtype), bias.to(dtype)), None
        dfirst, dlogit, sums = _tower(first, (gmf_user, gmf_item), (users, items, labels), tuple(layers))
        ctx.save_for_backward(*batch, *parameters, rows, dfirst, dlogit, sums)
        return sums[-1].clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        users, items, _, by_item, user_starts, item_starts, *saved = ctx.saved_tensors
        *parameters, rows, dfirst, dlogit, sums = saved
        gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
        user_segments, user_gmf = (None, user_starts), (dlogit, gmf_user, gmf_item, items, layers[-2])
        item_segments, item_gmf = (by_item, item_starts), (dlogit, gmf_item, gmf_user, users, layers[-2])
        mlp_dim = mlp_user.shape[1]
        if rows is None:
            duser, ditem = (dfirst.new_empty(table.shape[0], dfirst.shape[1]) for table in (mlp_user, mlp_item))
            dgmf_user, dgmf = _row_gradients(dfirst, user_segments, user_gmf, scale, duser, scaled=False)
            dgmf_item, _ = _row_gradients(dfirst, item_segments, item_gmf, scale, ditem, scaled=False)
            parts = scale.new_empty(kernels.count_multiprocessors(scale), *weight.shape)
            dmlp_user = _project_backward(duser, mlp_user, weight[:, :mlp_dim], scale, parts)
            dmlp_item = _project_backward(ditem, mlp_item, weight[:, mlp_dim:], scale, parts[..., mlp_dim:])
            dweight = kernels.sum_parts(parts, torch.empty_like(weight)) * scale
            dbias = kernels.sum_parts(ditem, torch.empty_like(bias)) * scale
        else:
            drows = dfirst @ weight.to(dfirst.dtype)
            dmlp_user, dmlp_item = torch.empty_like(mlp_user), torch.empty_like(mlp_item)
            dgmf_user, dgmf = _row_gradients(drows, user_segments, user_gmf, scale, dmlp_user, scaled=True)
            dgmf_item, _ = _row_gradients(drows[:, mlp_dim:], item_segments, item_gmf, scale, dmlp_item, scaled=True)
            dweight, dbias = (dfirst.T @ rows).float() * scale, dfirst.sum(0, dtype=torch.float32) * scale
        dlayers = (sums[:-1] * scale).split([layer.numel() for layer in layers])
        dlayers = [grad.view_as(layer) for grad, layer in zip(dlayers, layers, strict=True)]
        dlayers[-2][0, : dgmf.numel()] = dgmf
        return None, None, *[None] * 6, dgmf_user, dgmf_item, dmlp_user, dmlp_item, dweight, dbias, *dlayers


def _row_gradients(
    values: Tensor,
    segments: tuple[Tensor | None, Tensor],
    gmf: tuple[Tensor, ...],
    scale: Tensor,
    out: Tensor,
    scaled: bool,
) -> tuple[Tensor, Any]:
    """Sum values [B, D] over segments into out [N, D], times scale [] if `scaled`.

    Return the gradients, times scale, of the GMF table and of the output weight [G]; the latter is None on the items'
    side. `segments` are order (None: identity) and starts; `gmf` are dlogit [B], this side's table [N, G], the other
    side's table and ids [B], and the output weight.
    """
    dgmf, count = torch.empty_like(gmf[1]), out.shape[0]
    rows, segments_per_program = (8, 4) if segments[0] is None else (32, 1)
    programs = -(-count // segments_per_program)
    dweight = dgmf.new_empty(programs, dgmf.shape[1]) if segments[0] is None else None
    sizes = count, out.shape[1], dgmf.shape[1], rows, segments_per_program, scaled
    args = values, values.stride(0), *segments, out, scale, *gmf, dgmf, dweight
    kernels.sum_segments[(programs,)](*args, *sizes, num_warps=1, num_stages=1)
    return dgmf, None if dweight is None else kernels.sum_parts(dweight, dweight.new_empty(dweight.shape[1])) * scale


def _project(table: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return table [N, D] @ weight [H1, D].T + bias as `dtype` [N, H1]; `weight` may be a slice of columns."""
    out = table.new_empty(table.shape[0], weight.shape[0], dtype=dtype)
    sizes = table.shape[0], weight.stride(0), table.shape[1], weight.shape[0], kernels.TILE
    kernels.project[(kernels.count_multiprocessors(table) * 2,)](
        table, weight, bias, out, *sizes, num_warps=8, num_stages=1
    )
    return out


def _project_backward(grad: Tensor, table: Tensor, weight: Tensor, scale: Tensor, dweight_parts: Tensor) -> Tensor:
    """Return the table's gradient, fp32 [N, D] times scale, from its projection's half [N, H1].

    The weight's gradient, not scaled, is written to `dweight_parts` [P, H1, D], to be summed over the programs.
    """
    out = torch.empty_like(table)
    sizes = table.shape[0], weight.stride(0), dweight_parts.stride(1), table.shape[1], grad.shape[1], kernels.TILE
    args = grad, table, weight, scale, out, dweight_parts
    kernels.project_backward[(dweight_parts.shape[0],)](*args, *sizes, num_warps=8, num_stages=1)
    return out


def _tower(
    first: kernels.Pair, gmf: kernels.Pair, batch: tuple[Tensor, ...], layers: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run forward and backward pass of all but the first layer; return (dfirst half [B, H1], dlogit fp32 [B], sums).

    first: projected tables, half [U, H1] and [I, H1], or the samples' [B, H1] and None. gmf: tables [U, G] and [I, G].
    batch: users, items, labels. layers: weight and bias of H1 -> H2 -> H3 -> output. sums fp32: the gradients of
    `layers` in this order (0 for the GMF part of the output weight), then the loss. Gradients are those of the summed,
    unscaled loss, so that fp16 can hold them.
    """
    rows, samples, dtype = first[0], batch[0].numel(), first[0].dtype
    # Each program writes a part of the sums, so there are no more of them than tiles of samples.
    programs = max(1, min(kernels.count_multiprocessors(rows), -(-samples // kernels.TILE)))
    (h2, h1), h3, g = layers[0].shape, layers[2].shape[0], gmf[0].shape[1]
    weights = (layers[0].to(dtype), layers[1], layers[2].to(dtype), *layers[3:])
    width = sum(layer.numel() for layer in layers[1:]) + 1
    top, low = (rows.new_empty(parts, dtype=torch.float32) for parts in ((2 * programs, width), (programs, h2 * h1)))
    logit, dlogit = (rows.new_empty(samples, dtype=torch.float32) for _ in range(2))
    second, dfirst = rows.new_empty(samples, h2), rows.new_empty(samples, h1)
    sums = low.new_zeros(low.shape[1] + width)
    if samples:  # the kernels prefetch, so they need at least one sample
        sizes: tuple[int, ...] = samples, width, h1, h2, h3, g, kernels.TILE
        kernels.tower_top[(2 * programs,)](
            *first, *gmf, *batch, *weights, second, logit, top, *sizes, num_warps=4, num_stages=1
        )
        kernels.losses[(2 * programs,)](logit, batch[2], dlogit, top, samples, width, 16 * kernels.TILE)
        sizes = samples, h1, h2, kernels.TILE, kernels.COLUMN_BLOCKS
        low_args = *first, *batch[:2], weights[0], second, dfirst, low, *sizes
        kernels.tower_low[(programs * kernels.COLUMN_BLOCKS,)](*low_args, num_warps=4, num_stages=1)
        kernels.sum_parts(low, sums[: low.shape[1]])
        kernels.sum_parts(top, sums[low.shape[1] :])
    return dfirst, dlogit, sums


def _fused_logits(first: kernels.Pair, gmf: kernels.Pair, items: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    """Return fp32 logits [n, k] of items int32 [n, k].

    first: half [n, H1] and [I, H1]; gmf: [n, G] and [I, G]; layers as in `_tower`.
    """
    (h2, h1), h3, g, dtype = layers[0].shape, layers[2].shape[0], gmf[0].shape[1], first[0].dtype
    weights = (layers[0].to(dtype), layers[1], layers[2].to(dtype), *layers[3:])
    out = torch.empty_like(items, dtype=torch.float32)
    sizes = items.numel(), items.shape[1], h1, h2, h3, g, kernels.TILE
    args = *first, *gmf, items, *weights, out, *sizes
    kernels.logits[(2 * kernels.count_multiprocessors(items),)](*args, num_warps=8, num_stages=1)
    return out
