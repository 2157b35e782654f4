"""NeuMF (He et al. 2017, arXiv:1708.05031) as MLPerf Training v0.5 defines it, arranged for large sorted batches."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from . import kernels

_SCORED = 1 << 20  # samples scored in one go without the kernels


class NeuMF(nn.Module):
    """GMF and MLP towers over user and item tables, one logit a sample.

    `layers` are the MLP's widths, the first that of its input: two embeddings of half of it.
    """

    def __init__(self, users: int, items: int, factors: int, layers: Sequence[int]) -> None:
        super().__init__()
        if len(layers) < 2 or layers[0] % 2:
            raise ValueError(f"layers={list(layers)}: name an even input width and at least one hidden layer.")
        half = layers[0] // 2
        self.gmf_user, self.gmf_item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.mlp_user, self.mlp_item = nn.Embedding(users, half), nn.Embedding(items, half)
        hidden = [nn.Linear(wide, narrow) for wide, narrow in itertools.pairwise(layers)]
        self.hidden = nn.ModuleList(hidden)
        self.output = nn.Linear(factors + layers[-1], 1)
        self._widths = (half, factors, *layers[1:])
        for table in (self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item):
            nn.init.normal_(table.weight, std=0.01)
        for layer in hidden:
            nn.init.xavier_uniform_(layer.weight)
        bound = math.sqrt(3 / self.output.in_features)
        nn.init.uniform_(self.output.weight, -bound, bound)

    def forward(
        self, users: Tensor, items: Tensor, labels: Tensor, by_item: Tensor, user_starts: Tensor, item_starts: Tensor
    ) -> Tensor:
        """The fp32 sum of BCE-with-logits over B samples (0 allowed).

        users int32 [B] ascending, items int32 [B], labels float32 [B]; by_item int32 [B] sorts the samples by item;
        user_starts int32 [U+1] and item_starts int32 [I+1] are the runs in either order.
        """
        batch = (users, items, labels, by_item, user_starts, item_starts)
        if dtype := self._half(users):
            return _fused(dtype, self._projects(users), batch, self._weights())
        runs_by_user, runs_by_item = (users, None, user_starts), (items, by_item, item_starts)
        gmf = _Lookup.apply(self.gmf_user.weight, *runs_by_user) * _Lookup.apply(self.gmf_item.weight, *runs_by_item)
        user_weight, item_weight = self._first.weight.chunk(2, 1)
        first = [
            (self.mlp_user.weight, user_weight, self._first.bias, runs_by_user),
            (self.mlp_item.weight, item_weight, None, runs_by_item),
        ]
        if self._projects(users):
            parts = [_Lookup.apply(F.linear(table, weight, bias), *runs) for table, weight, bias, runs in first]
        else:
            parts = [F.linear(_Lookup.apply(table, *runs), weight, bias) for table, weight, bias, runs in first]
        return F.binary_cross_entropy_with_logits(self._logits(gmf, parts[0] + parts[1]), labels, reduction="sum")

    @torch.no_grad()
    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """fp32 logits [n, k] of the items int32 [n, k] for the users int32 [n]."""
        if dtype := self._half(users):
            return _fused_scores(dtype, users, items, self._weights())
        user_weight, item_weight = self._first.weight.chunk(2, 1)
        all_items = F.linear(self.mlp_item.weight, item_weight)
        rows = max(1, _SCORED // max(1, items.shape[1]))
        parts = []
        for some_users, some_items in zip(users.split(rows), items.split(rows), strict=True):
            gmf = self.gmf_user(some_users)[:, None] * self.gmf_item(some_items)
            first = F.linear(self.mlp_user(some_users), user_weight, self._first.bias)[:, None]
            parts.append(self._logits(gmf, first + all_items[some_items]))
        return torch.cat(parts)

    @property
    def _first(self) -> nn.Linear:
        layer = self.hidden[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def _projects(self, users: Tensor) -> bool:
        """Whether to project the tables once rather than every sample's copy of their rows, the first layer being
        linear in the concatenated embeddings: where the tables have fewer rows than the batch looks up.
        """
        return self.gmf_user.num_embeddings + self.gmf_item.num_embeddings <= 2 * users.numel()

    @torch.compiler.disable
    def _half(self, tensor: Tensor) -> torch.dtype | None:
        """The half type of the fused kernels, where they can run: under autocast, for layers that fit on chip.

        Who counts operations by a dispatch mode would not see them.
        """
        device = tensor.device.type
        if is_in_torch_dispatch_mode() or not kernels.available(tensor) or not torch.is_autocast_enabled(device):
            return None
        return torch.get_autocast_dtype(device) if kernels.fits(tensor.device, *self._widths) else None

    def _weights(self) -> tuple[Tensor, ...]:
        tables = (self.gmf_user.weight, self.gmf_item.weight, self.mlp_user.weight, self.mlp_item.weight)
        return *tables, *(value for layer in (*self.hidden, self.output) for value in (layer.weight, layer.bias))

    def _logits(self, gmf: Tensor, first: Tensor) -> Tensor:
        """Logits [...], fp32 under autocast too, from the GMF product [..., F] and the first layer's sums [..., H]."""
        wide = F.relu(first)
        for layer in self.hidden[1:]:
            wide = F.relu(layer(wide))
        with torch.autocast(gmf.device.type, enabled=False):
            weight, bias = self.output.weight, self.output.bias
            both = torch.cat([gmf.to(weight.dtype), wide.to(weight.dtype)], -1)
            return F.linear(both, weight, bias).squeeze(-1)


class _Lookup(torch.autograd.Function):
    """table[ids], whose gradient is a sum over runs of equal ids: no atomics, and every row is written once."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, order: Tensor | None, starts: Tensor) -> Tensor:
        ctx.save_for_backward(order, starts)
        return table.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order, starts = ctx.saved_tensors
        return kernels.segment_sum(grad.contiguous(), order, starts).to(grad.dtype), None, None, None


@torch.compiler.disable
def _fused(dtype: torch.dtype, projects: bool, batch: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
    return _FusedLoss.apply(dtype, projects, *batch, *parameters)


@torch.compiler.disable
def _fused_scores(dtype: torch.dtype, users: Tensor, items: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
    gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
    half = mlp_user.shape[1]
    first = (
        _project(mlp_user[users], weight[:, :half], bias, dtype),
        _project(mlp_item, weight[:, half:], None, dtype),
    )
    return _fused_logits(first, (gmf_user[users], gmf_item), items.contiguous(), tuple(layers))


class _FusedLoss(torch.autograd.Function):
    """The loss by the fused kernels. The forward pass already computes the gradients of the activations, for a loss
    that is not scaled, so that fp16 can hold them; the backward pass scales where it sums them up in fp32.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, projects: bool, *tensors: Tensor) -> Tensor:
        batch, parameters = tensors[:6], tensors[6:]
        users, items, labels = batch[:3]
        gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
        half = mlp_user.shape[1]
        rows = None
        first: kernels.Pair
        if projects:
            first = (
                _project(mlp_user, weight[:, :half], bias, dtype),
                _project(mlp_item, weight[:, half:], None, dtype),
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
        user_runs, user_gmf = (None, user_starts), (dlogit, gmf_user, gmf_item, items, layers[-2])
        item_runs, item_gmf = (by_item, item_starts), (dlogit, gmf_item, gmf_user, users, layers[-2])
        half = mlp_user.shape[1]
        if rows is None:
            duser, ditem = (dfirst.new_empty(table.shape[0], dfirst.shape[1]) for table in (mlp_user, mlp_item))
            dgmf_user, dgmf = _row_gradients(dfirst, user_runs, user_gmf, scale, duser, scaled=False)
            dgmf_item, _ = _row_gradients(dfirst, item_runs, item_gmf, scale, ditem, scaled=False)
            parts = scale.new_empty(kernels.programs_of(scale), *weight.shape)
            dmlp_user = _project_backward(duser, mlp_user, weight[:, :half], scale, parts)
            dmlp_item = _project_backward(ditem, mlp_item, weight[:, half:], scale, parts[..., half:])
            dweight = kernels.add_parts(parts, torch.empty_like(weight)) * scale
            dbias = kernels.add_parts(ditem, torch.empty_like(bias)) * scale
        else:
            drows = dfirst @ weight.to(dfirst.dtype)
            dmlp_user, dmlp_item = torch.empty_like(mlp_user), torch.empty_like(mlp_item)
            dgmf_user, dgmf = _row_gradients(drows, user_runs, user_gmf, scale, dmlp_user, scaled=True)
            dgmf_item, _ = _row_gradients(drows[:, half:], item_runs, item_gmf, scale, dmlp_item, scaled=True)
            dweight, dbias = (dfirst.T @ rows).float() * scale, dfirst.sum(0, dtype=torch.float32) * scale
        dlayers = (sums[:-1] * scale).split([layer.numel() for layer in layers])
        dlayers = [grad.view_as(layer) for grad, layer in zip(dlayers, layers, strict=True)]
        dlayers[-2][0, : dgmf.numel()] = dgmf
        return None, None, *[None] * 6, dgmf_user, dgmf_item, dmlp_user, dmlp_item, dweight, dbias, *dlayers


def _row_gradients(
    values: Tensor,
    runs: tuple[Tensor | None, Tensor],
    gmf: tuple[Tensor, ...],
    scale: Tensor,
    out: Tensor,
    scaled: bool,
) -> tuple[Tensor, Any]:
    """Sums values [B, D] over runs into out [N, D], times scale [] where `scaled`; returns the GMF table's gradient,
    and the output weight's [G] from the users' side (None from the items'), both times scale.

    runs: order (None: as they lie) and starts. gmf: dlogit [B], this side's table [N, G], the other's, the other's ids
    [B], output weight.
    """
    dgmf, count = torch.empty_like(gmf[1]), out.shape[0]
    rows, runs_each = (8, 4) if runs[0] is None else (32, 1)
    programs = -(-count // runs_each)
    dweight = dgmf.new_empty(programs, dgmf.shape[1]) if runs[0] is None else None
    sizes = count, out.shape[1], dgmf.shape[1], rows, runs_each, scaled
    args = values, values.stride(0), *runs, out, scale, *gmf, dgmf, dweight
    kernels.sum_runs[(programs,)](*args, *sizes, num_warps=1, num_stages=1)
    return dgmf, None if dweight is None else kernels.add_parts(dweight, dweight.new_empty(dweight.shape[1])) * scale


def _project(table: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """dtype [N, H1]: table [N, D] times weight [H1, D] (a slice of columns, say) transposed, plus bias."""
    out = table.new_empty(table.shape[0], weight.shape[0], dtype=dtype)
    sizes = table.shape[0], weight.stride(0), table.shape[1], weight.shape[0], kernels.TILE
    kernels.project[(kernels.programs_of(table) * 2,)](table, weight, bias, out, *sizes, num_warps=8, num_stages=1)
    return out


def _project_backward(grad: Tensor, table: Tensor, weight: Tensor, scale: Tensor, sums: Tensor) -> Tensor:
    """The table's gradient fp32 [N, D] from its projection's half [N, H1], times scale; the weight's goes to sums
    [P, H1, D], unscaled, to be added over the programs.
    """
    out = torch.empty_like(table)
    sizes = table.shape[0], weight.stride(0), sums.stride(1), table.shape[1], grad.shape[1], kernels.TILE
    kernels.project_backward[(sums.shape[0],)](grad, table, weight, scale, out, sums, *sizes, num_warps=8, num_stages=1)
    return out


def _tower(
    first: kernels.Pair, gmf: kernels.Pair, batch: tuple[Tensor, ...], layers: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward, loss and backward of all but the first layer's product: (dfirst half [B, H1], dlogit fp32 [B], sums).

    first: half rows [U, H1] and [I, H1] to add by users and items, or [B, H1] and None. gmf: tables [U, G], [I, G].
    batch: users, items, labels. layers: weight and bias of H1 -> H2 -> H3 -> output. sums fp32: the gradients of
    `layers` in this order (the output weight's GMF part left 0), then the loss. Gradients are those of the sum of the
    losses, so that fp16 can hold them.
    """
    rows, samples, dtype, programs = first[0], batch[0].numel(), first[0].dtype, kernels.programs_of(first[0])
    (h2, h1), h3, g = layers[0].shape, layers[2].shape[0], gmf[0].shape[1]
    weights = (layers[0].to(dtype), layers[1], layers[2].to(dtype), *layers[3:])
    width = sum(layer.numel() for layer in layers[1:]) + 1
    top, low = (rows.new_empty(parts, dtype=torch.float32) for parts in ((2 * programs, width), (programs, h2 * h1)))
    logit, dlogit = (rows.new_empty(samples, dtype=torch.float32) for _ in range(2))
    second, dfirst = rows.new_empty(samples, h2), rows.new_empty(samples, h1)
    sums = low.new_zeros(low.shape[1] + width)
    if samples:  # the kernels read ahead, so one sample at least
        sizes: tuple[int, ...] = samples, width, h1, h2, h3, g, kernels.TILE
        kernels.tower_top[(2 * programs,)](
            *first, *gmf, *batch, *weights, second, logit, top, *sizes, num_warps=4, num_stages=1
        )
        kernels.losses[(2 * programs,)](logit, batch[2], dlogit, top, samples, width, 16 * kernels.TILE)
        sizes = samples, h1, h2, kernels.TILE, kernels.SHARES
        low_args = *first, *batch[:2], weights[0], second, dfirst, low, *sizes
        kernels.tower_low[(programs * kernels.SHARES,)](*low_args, num_warps=4, num_stages=1)
        kernels.add_parts(low, sums[: low.shape[1]])
        kernels.add_parts(top, sums[low.shape[1] :])
    return dfirst, dlogit, sums


def _fused_logits(first: kernels.Pair, gmf: kernels.Pair, items: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    """fp32 [n, k]: items int32 [n, k]; first half [n, H1] and [I, H1], gmf [n, G] and [I, G]; layers as in `tower`."""
    (h2, h1), h3, g, dtype = layers[0].shape, layers[2].shape[0], gmf[0].shape[1], first[0].dtype
    weights = (layers[0].to(dtype), layers[1], layers[2].to(dtype), *layers[3:])
    out = torch.empty_like(items, dtype=torch.float32)
    sizes = items.numel(), items.shape[1], h1, h2, h3, g, kernels.TILE
    args = *first, *gmf, items, *weights, out, *sizes
    kernels.logits[(2 * kernels.programs_of(items),)](*args, num_warps=8, num_stages=1)
    return out
