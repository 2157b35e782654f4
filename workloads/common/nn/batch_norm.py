"""Fused batch norm, residual sum and ReLU by Triton kernels, for models that are not compiled.

These operations are limited by memory, so that kernels share each pass over the maps. The forward pass reads them for
their sums, then reads, normalizes, adds and writes them. The backward pass adds the gradients of the next branch and of
the next shortcut, masks and sums them, and writes the gradients of the maps in a second pass. Maps are channels-last.

Shapes: N images, C channels, P = N * H * W pixels. Sums are accumulated in fp32 and in a fixed order.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import batch_norm_kernels as kernels
from .triton_support import triton, triton_available

_BLOCK_P, _BLOCK_C = 32, 64  # pixels and channels that a program reads at a time
# Programs that share a sum, and the fewest tiles that each reads. Their number decides how sums are rounded, so it is
# not derived from the device: it fills the GPUs of today, and all of them round alike.
_SUM_PROGRAMS, _MIN_TILES = 1024, 4
_BLOCK_PARTS, _BLOCK_FINISHED_C = 128, 16  # partial sums that a program adds at a time, and its channels
_MAX_PIXELS = 2**30  # kernels count pixels in 32 bits, and their offsets in 64


def batch_norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return ReLU(norm(x)) of maps x [N, C, H, W], in the dtype of x where Triton's kernels compute it."""
    return _fused(norm, x, None, None)[0] if _is_fusible(norm, x) else F.relu(norm(x))


def residual_batch_norm_relu(
    norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor, shortcut_norm: nn.BatchNorm2d | None = None
) -> tuple[Tensor, Tensor]:
    """Return ReLU(norm(x) + shortcut), or + shortcut_norm(shortcut), twice: for the next branch and the next shortcut.

    The backward pass then receives both gradients and adds them itself. Both are the same memory: do not change them.
    """
    if _is_fusible(norm, x, shortcut, shortcut_norm):
        return _fused(norm, x, shortcut, shortcut_norm)
    y = F.relu(norm(x) + (shortcut if shortcut_norm is None else shortcut_norm(shortcut)))
    return y, y


def project(downsample: nn.Sequential | None, x: Tensor) -> tuple[Tensor] | tuple[Tensor, nn.BatchNorm2d]:
    """Return the shortcut of a residual block: x or, if its size changes, its convolution and the norm that follows."""
    if not downsample:
        return (x,)
    convolution, norm = downsample
    assert isinstance(norm, nn.BatchNorm2d)
    return convolution(x), norm


def _is_fusible(
    norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None = None, shortcut_norm: nn.BatchNorm2d | None = None
) -> bool:
    norms = [norm] if shortcut_norm is None else [norm, shortcut_norm]
    return (
        all(_is_plain(one) and one.training == norm.training for one in norms)
        and (norm.training or not torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and triton_available(x)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] % 8 == 0  # eight channels share a byte of the ReLU's mask
        and x.shape[1] < x.numel() <= x.shape[1] * _MAX_PIXELS  # PyTorch refuses to train on one value a channel
        and (shortcut is None or (shortcut.shape == x.shape and shortcut.dtype == x.dtype))
    )


def _is_plain(norm: nn.BatchNorm2d) -> bool:
    """Return whether the norm has weights and running averages, and no synchronization over ranks."""
    return type(norm) is nn.BatchNorm2d and norm.affine and norm.track_running_stats and norm.momentum is not None


def _fused(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, residual_norm: nn.BatchNorm2d | None
) -> tuple[Tensor, Tensor]:
    if not norm.training:
        residual = None if residual is None else residual.contiguous(memory_format=torch.channels_last)
        residual_scale_shift = None if residual_norm is None else _running_scale_shift(residual_norm)
        y = _apply(x, residual, _running_scale_shift(norm), residual_scale_shift)
        return y, y
    residual_affine = (None, None) if residual_norm is None else (residual_norm.weight, residual_norm.bias)
    branch, shortcut = _BatchNormReLU.apply(x, residual, norm.weight, norm.bias, *residual_affine, norm, residual_norm)
    return branch, shortcut


class _BatchNormReLU(torch.autograd.Function):
    """y = ReLU(z), z = w x_hat + b + residual, x_hat = (x - mean(x)) rstd, rstd = 1 / sqrt(var(x) + eps).

    The residual may be normalized likewise. dz = dy where z > 0, else 0; dw = sum(dz x_hat), db = sum(dz) and
    dx = w rstd (dz - mean(dz) - x_hat mean(dz x_hat)). Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, residual_weight: Tensor | None,
        residual_bias: Tensor | None, norm: nn.BatchNorm2d, residual_norm: nn.BatchNorm2d | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        mean_rstd, scale_shift = _measure(norm, x)
        residual_mean_rstd, residual_scale_shift, positive = mean_rstd, None, None
        if residual is not None:
            residual = residual.contiguous(memory_format=torch.channels_last)
            positive = torch.empty(x.numel() // 8, dtype=torch.uint8, device=x.device)
        if residual_norm is not None:
            assert residual is not None
            residual_mean_rstd, residual_scale_shift = _measure(residual_norm, residual)
        y, kind = (
            _apply(x, residual, scale_shift, residual_scale_shift, positive),
            _kind(residual, residual_scale_shift),
        )
        ctx.kind = kind
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            x, residual if kind == kernels.NORMALIZED_RESIDUAL else None, positive, weight, residual_weight, mean_rstd,
            residual_mean_rstd, scale_shift,
        )  # fmt: skip
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, positive, weight, residual_weight, mean_rstd, residual_mean_rstd, scale_shift = ctx.saved_tensors
        dys = [grad.contiguous(memory_format=torch.channels_last) for grad in grads if grad is not None]
        kind, (parts, blocks), (pixels, channels) = ctx.kind, _parts(x), _sizes(x)
        sums, residual_sums = torch.empty(2, parts, 2, channels, device=x.device)
        # Without a residual the mask is that of the normalized maps, which are computed again.
        dz = dys[0] if kind == kernels.NO_RESIDUAL else torch.empty_like(x)
        residual = x if residual is None else residual
        kernels.sum_gradients[(parts * blocks,)](
            x_ptr=x, residual_ptr=residual, dy_ptr=dys[0], other_dy_ptr=dys[-1],
            positive_ptr=x if positive is None else positive, dz_ptr=dz, scale_shift_ptr=scale_shift,
            mean_rstd_ptr=mean_rstd, residual_mean_rstd_ptr=residual_mean_rstd, partial_sums_ptr=sums,
            residual_partial_sums_ptr=residual_sums, num_pixels=pixels, num_channels=channels,
            pixels_per_part=triton.cdiv(pixels, parts), KIND=kind, HAS_OTHER=len(dys) == 2,
            BLOCK_P=_BLOCK_P, BLOCK_C=_BLOCK_C,
        )  # fmt: skip
        dx, gradients = torch.empty_like(x), _finish_gradients(sums, weight, mean_rstd, x)
        dresidual, residual_gradients = dz, gradients
        if kind == kernels.NORMALIZED_RESIDUAL:
            dresidual = torch.empty_like(x)
            residual_gradients = _finish_gradients(residual_sums, residual_weight, residual_mean_rstd, x)
        kernels.apply_backward[_grid(x)](
            x_ptr=x, residual_ptr=residual, dz_ptr=dz, dx_ptr=dx, dresidual_ptr=dresidual, scale_shift_ptr=scale_shift,
            gradients_ptr=gradients, residual_gradients_ptr=residual_gradients, num_pixels=pixels,
            num_channels=channels, KIND=kind, BLOCK_P=_BLOCK_P, BLOCK_C=_BLOCK_C,
        )  # fmt: skip
        dw, db = gradients[3:]
        residual_dw, residual_db = residual_gradients[3:] if kind == kernels.NORMALIZED_RESIDUAL else (None, None)
        return dx, None if kind == kernels.NO_RESIDUAL else dresidual, dw, db, residual_dw, residual_db, None, None


def _sizes(x: Tensor) -> tuple[int, int]:
    """Return pixels and channels."""
    return x.numel() // x.shape[1], x.shape[1]


def _tiles(x: Tensor) -> tuple[int, int]:
    """Return how many tiles share the pixels, and how many the channels."""
    pixels, channels = _sizes(x)
    return triton.cdiv(pixels, _BLOCK_P), triton.cdiv(channels, _BLOCK_C)


def _grid(x: Tensor) -> tuple[int]:
    return (math.prod(_tiles(x)),)


def _parts(x: Tensor) -> tuple[int, int]:
    """Return how many programs share the pixels of a sum, and how many its channels."""
    tiles, blocks = _tiles(x)
    return max(1, min(tiles // _MIN_TILES, _SUM_PROGRAMS // blocks)), blocks


def _measure(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and rstd of x, and the scale and shift that normalize it: float32 [2, C] each.

    Updates the running statistics as PyTorch does.
    """
    (parts, blocks), (pixels, channels) = _parts(x), _sizes(x)
    sums = torch.empty(parts, 2, channels, device=x.device)
    kernels.sum_values[(parts * blocks,)](
        x_ptr=x, shift_ptr=norm.running_mean, partial_sums_ptr=sums, num_pixels=pixels, num_channels=channels,
        pixels_per_part=triton.cdiv(pixels, parts), BLOCK_P=_BLOCK_P, BLOCK_C=_BLOCK_C,
    )  # fmt: skip
    mean_rstd, scale_shift = torch.empty(2, 2, channels, device=x.device)
    kernels.finish_forward[(triton.cdiv(channels, _BLOCK_FINISHED_C),)](
        partial_sums_ptr=sums, weight_ptr=norm.weight, bias_ptr=norm.bias, running_mean_ptr=norm.running_mean,
        running_var_ptr=norm.running_var, num_batches_ptr=norm.num_batches_tracked, mean_rstd_ptr=mean_rstd,
        scale_shift_ptr=scale_shift, num_pixels=pixels, num_channels=channels, num_parts=parts,
        momentum=norm.momentum, eps=norm.eps, BLOCK_C=_BLOCK_FINISHED_C, BLOCK_PARTS=_BLOCK_PARTS,
    )  # fmt: skip
    return mean_rstd, scale_shift


def _running_scale_shift(norm: nn.BatchNorm2d) -> Tensor:
    """Return the scale and shift by which an evaluation normalizes: float32 [2, C]."""
    channels = norm.num_features
    scale_shift = torch.empty(2, channels, device=norm.weight.device)
    kernels.read_running_statistics[(triton.cdiv(channels, _BLOCK_C),)](
        weight_ptr=norm.weight, bias_ptr=norm.bias, running_mean_ptr=norm.running_mean,
        running_var_ptr=norm.running_var, scale_shift_ptr=scale_shift, num_channels=channels, eps=norm.eps,
        BLOCK_C=_BLOCK_C,
    )  # fmt: skip
    return scale_shift


def _apply(
    x: Tensor, residual: Tensor | None, scale_shift: Tensor, residual_scale_shift: Tensor | None,
    positive: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the ReLU of the normalized maps; write into `positive`, if given, a bit for each value that is."""
    y, (pixels, channels) = torch.empty_like(x), _sizes(x)
    kernels.apply_forward[_grid(x)](
        x_ptr=x, residual_ptr=x if residual is None else residual, y_ptr=y,
        positive_ptr=x if positive is None else positive, scale_shift_ptr=scale_shift,
        residual_scale_shift_ptr=scale_shift if residual_scale_shift is None else residual_scale_shift,
        num_pixels=pixels, num_channels=channels, KIND=_kind(residual, residual_scale_shift),
        HAS_POSITIVE=positive is not None, BLOCK_P=_BLOCK_P, BLOCK_C=_BLOCK_C,
    )  # fmt: skip
    return y


def _kind(residual: Tensor | None, residual_scale_shift: Tensor | None) -> int:
    if residual is None:
        return kernels.NO_RESIDUAL
    return kernels.RESIDUAL if residual_scale_shift is None else kernels.NORMALIZED_RESIDUAL


def _finish_gradients(sums: Tensor, weight: Tensor, mean_rstd: Tensor, x: Tensor) -> Tensor:
    """Return float32 [5, C]: a, b and c of dx = a dz + b x + c, then dw and db."""
    gradients, (pixels, channels) = torch.empty(5, x.shape[1], device=x.device), _sizes(x)
    kernels.finish_backward[(triton.cdiv(channels, _BLOCK_FINISHED_C),)](
        partial_sums_ptr=sums, weight_ptr=weight, mean_rstd_ptr=mean_rstd, gradients_ptr=gradients, num_pixels=pixels,
        num_channels=channels, num_parts=len(sums), BLOCK_C=_BLOCK_FINISHED_C, BLOCK_PARTS=_BLOCK_PARTS,
    )  # fmt: skip
    return gradients
