"""NeuMF's loss and scores by Triton kernels; PERFORMANCE.md explains how the work is divided into kernels.

Shapes: B samples, U users, I items, D MLP embedding size, H1, H2, H3 sizes of the hidden layers, G GMF dimension.
"Half" means bf16 or fp16. Parameters are fp32, in the order of `NeuMF._parameter_list`.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...runner.hardware import devices
from ...runner.training.eager import keep_eager
from ..common.nn.triton_support import triton
from .projection import project_table, project_table_backward
from .segment_sums import GMFSide, sum_gradients, sum_parts
from .tower import COLUMN_BLOCKS, Pair, tower_gradients, tower_logits

_MAX_LAYER_SIZES = (256, 128, 64)
_SHARED_MEMORY_BYTES = 160 << 10  # needed for layers of the maximum sizes


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
        and _max_shared_memory(device.index) >= _SHARED_MEMORY_BYTES
    )


@keep_eager
def fused_loss(
    dtype: torch.dtype, projects_tables: bool, batch: tuple[Tensor, ...], parameters: tuple[Tensor, ...]
) -> Tensor:
    """Return the loss of a batch, the arguments of `NeuMF.forward`: fp32 [], computed in the half `dtype`.

    With `projects_tables`, the first layer is applied to the MLP's tables, else to each sample's rows.
    """
    loss: Tensor = _FusedLoss.apply(dtype, projects_tables, *batch, *parameters)
    return loss


@keep_eager
def fused_scores(dtype: torch.dtype, users: Tensor, items: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
    """Return the fp32 logits [n, k] of the items int32 [n, k] for the users int32 [n], computed in the half `dtype`."""
    gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
    first = _project_both(mlp_user[users], mlp_item, weight, bias, dtype)
    return tower_logits(first, (gmf_user[users], gmf_item), items.contiguous(), tuple(layers))


class _FusedLoss(torch.autograd.Function):
    """loss = sum of -y log(p) - (1 - y) log(1 - p) with p = sigmoid(NeuMF(user, item)) (arXiv:1708.05031, equation 12).

    The forward pass also computes the gradients of the activations, for an unscaled loss, so that fp16 can hold them.
    The backward pass applies the loss scale where it sums them in fp32.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, projects_tables: bool, *tensors: Tensor) -> Tensor:
        batch, parameters = tensors[:6], tensors[6:]
        users, items, labels = batch[:3]
        gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
        rows = None
        first: Pair
        if projects_tables:
            first = _project_both(mlp_user, mlp_item, weight, bias, dtype)
        else:
            rows = torch.cat([mlp_user[users], mlp_item[items]], 1).to(dtype)
            first = F.linear(rows, weight.to(dtype), bias.to(dtype)), None
        gradients = tower_gradients(first, (gmf_user, gmf_item), users, items, labels, tuple(layers))
        ctx.save_for_backward(*batch, *parameters, rows, *gradients)
        sums = gradients[-1]
        return sums[-1].clone()

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        users, items, _, by_item, user_starts, item_starts, *saved = ctx.saved_tensors
        *parameters, rows, dfirst, dlogit, sums = saved
        gmf_user, gmf_item, mlp_user, mlp_item, weight, bias, *layers = parameters
        user_side = GMFSide(None, user_starts, gmf_user, gmf_item, items)
        item_side = GMFSide(by_item, item_starts, gmf_item, gmf_user, users)
        output_weight, mlp_dim = layers[-2], mlp_user.shape[1]
        of_logits = dlogit, output_weight, dloss
        if rows is None:
            duser, ditem = (dfirst.new_empty(table.shape[0], dfirst.shape[1]) for table in (mlp_user, mlp_item))
            dgmf_user, dw_gmf = sum_gradients(dfirst, user_side, *of_logits, duser, scaled=False)
            dgmf_item, _ = sum_gradients(dfirst, item_side, *of_logits, ditem, scaled=False)
            parts = dloss.new_empty(devices.num_multiprocessors(dloss.device), *weight.shape)
            dmlp_user = project_table_backward(duser, mlp_user, weight[:, :mlp_dim], dloss, parts)
            dmlp_item = project_table_backward(ditem, mlp_item, weight[:, mlp_dim:], dloss, parts[..., mlp_dim:])
            dw = sum_parts(parts, torch.empty_like(weight)) * dloss
            db = sum_parts(ditem, torch.empty_like(bias)) * dloss
        else:
            drows = dfirst @ weight.to(dfirst.dtype)
            dmlp_user, dmlp_item = torch.empty_like(mlp_user), torch.empty_like(mlp_item)
            dgmf_user, dw_gmf = sum_gradients(drows, user_side, *of_logits, dmlp_user, scaled=True)
            dgmf_item, _ = sum_gradients(drows[:, mlp_dim:], item_side, *of_logits, dmlp_item, scaled=True)
            dw, db = (dfirst.T @ rows).float() * dloss, dfirst.sum(0, dtype=torch.float32) * dloss
        dlayers = (sums[:-1] * dloss).split([layer.numel() for layer in layers])
        dlayers = [grad.view_as(layer) for grad, layer in zip(dlayers, layers, strict=True)]
        dlayers[-2][0, : gmf_user.shape[1]] = dw_gmf
        return None, None, *[None] * 6, dgmf_user, dgmf_item, dmlp_user, dmlp_item, dw, db, *dlayers


def _project_both(
    mlp_user: Tensor, mlp_item: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the first layer's parts of users and items, half [N, H1] each; their sum is its output."""
    mlp_dim = mlp_user.shape[1]
    users = project_table(mlp_user, weight[:, :mlp_dim], bias, dtype)
    return users, project_table(mlp_item, weight[:, mlp_dim:], None, dtype)


@lru_cache
def _max_shared_memory(index: int) -> int:
    """Return the most bytes of shared memory that a program may have on a device."""
    properties: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return properties["max_shared_mem"]
