"""NeuMF (He et al. 2017, arXiv:1708.05031) of MLPerf Training v0.5, for large batches sorted by user.

Shapes: B samples, U users, I items, N rows of a table, D MLP embedding size, G GMF dimension, H1, H2, H3 sizes of the
hidden layers, P programs. "Half" means bf16 or fp16.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ...runner.training.eager import keep_eager
from ..common.nn.triton_support import triton_available
from .fused import fits_on_chip, fused_loss, fused_scores
from .sampling import IGNORED
from .segment_sums import lookup

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
        Samples with the label `IGNORED` do not count.
        """
        batch = (users, items, labels, by_item, user_starts, item_starts)
        if dtype := self._fused_dtype(users):
            return fused_loss(dtype, self._projects_tables(users), batch, self._parameter_list())
        by_user, by_item_ids = (users, None, user_starts), (items, by_item, item_starts)
        gmf = lookup(self.gmf_user.weight, *by_user) * lookup(self.gmf_item.weight, *by_item_ids)
        user_weight, item_weight = self._first_layer.weight.chunk(2, 1)
        sides = [
            (self.mlp_user.weight, user_weight, self._first_layer.bias, by_user),
            (self.mlp_item.weight, item_weight, None, by_item_ids),
        ]
        if self._projects_tables(users):
            parts = [lookup(F.linear(table, weight, bias), *ids) for table, weight, bias, ids in sides]
        else:
            parts = [F.linear(lookup(table, *ids), weight, bias) for table, weight, bias, ids in sides]
        counts = (labels != IGNORED).float()
        logits = self._logits(gmf, parts[0] + parts[1])
        return F.binary_cross_entropy_with_logits(logits, labels, counts, reduction="sum")

    @torch.no_grad()
    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the fp32 logits [n, k] of the items int32 [n, k] for the users int32 [n]."""
        if dtype := self._fused_dtype(users):
            return fused_scores(dtype, users, items, self._parameter_list())
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
        if is_in_torch_dispatch_mode() or not triton_available(tensor) or not torch.is_autocast_enabled(device):
            return None
        return torch.get_autocast_dtype(device) if fits_on_chip(tensor.device, *self._sizes) else None

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
