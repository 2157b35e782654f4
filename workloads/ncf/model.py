"""NeuMF (He et al. 2017, arXiv:1708.05031) as MLPerf Training v0.5 defines it, arranged for large sorted batches."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timetrial.workloads.ncf.kernels import segment_sum

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
        self.hidden = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in zip(layers, layers[1:], strict=False))
        self.output = nn.Linear(factors + layers[-1], 1)
        for table in (self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item):
            nn.init.normal_(table.weight, std=0.01)
        for layer in self.hidden:
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
        by_user = (users, None, user_starts)
        by_item = (items, by_item, item_starts)
        gmf = _Lookup.apply(self.gmf_user.weight, *by_user) * _Lookup.apply(self.gmf_item.weight, *by_item)
        # The first layer is linear in the concatenated embeddings: where the tables are smaller than the batch,
        # their rows are projected once, rather than every sample's copy of them.
        user_weight, item_weight = self.hidden[0].weight.chunk(2, 1)
        first = [
            (self.mlp_user.weight, user_weight, self.hidden[0].bias, by_user),
            (self.mlp_item.weight, item_weight, None, by_item),
        ]
        if self.gmf_user.num_embeddings + self.gmf_item.num_embeddings <= 2 * users.numel():
            parts = [_Lookup.apply(F.linear(table, weight, bias), *runs) for table, weight, bias, runs in first]
        else:
            parts = [F.linear(_Lookup.apply(table, *runs), weight, bias) for table, weight, bias, runs in first]
        logits = self._logits(gmf, parts[0] + parts[1])
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")

    @torch.no_grad()
    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """fp32 logits [n, k] of the items int32 [n, k] for the users int32 [n]."""
        user_weight, item_weight = self.hidden[0].weight.chunk(2, 1)
        all_items = F.linear(self.mlp_item.weight, item_weight)
        rows = max(1, _SCORED // max(1, items.shape[1]))
        parts = []
        for some_users, some_items in zip(users.split(rows), items.split(rows), strict=True):
            gmf = self.gmf_user(some_users)[:, None] * self.gmf_item(some_items)
            first = F.linear(self.mlp_user(some_users), user_weight, self.hidden[0].bias)[:, None]
            parts.append(self._logits(gmf, first + all_items[some_items]))
        return torch.cat(parts)

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
        return segment_sum(grad.contiguous(), order, starts).to(grad.dtype), None, None, None
