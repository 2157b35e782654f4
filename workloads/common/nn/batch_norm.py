"""Batch norm with the residual sum and the ReLU after it, by Triton kernels, for models not compiled.

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
from .triton_support import triton_available

try:
    import triton
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

_ROWS, _CHANNELS = 32, 64  # pixels and channels of a program, at a time
_PROGRAMS, _MIN_TILES = 1024, 4  # programs that share the sums, and the least that each of them reads
_PARTS, _FINISHED_CHANNELS = 128, 16  # sums that are added at a time, and channels of a program that adds them


def batch_norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return ReLU(norm(x)) of maps [N, C, H, W]."""
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
        and x.numel() > x.shape[1]  # PyTorch refuses to train on one value a channel
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
        y = _apply(
            x, residual, _running_factors(norm), None if residual_norm is None else _running_factors(residual_norm)
        )
        return y, y
    of_residual = (None, None) if residual_norm is None else (residual_norm.weight, residual_norm.bias)
    branch, shortcut = _BatchNormReLU.apply(x, residual, norm.weight, norm.bias, *of_residual, norm, residual_norm)
    return branch, shortcut


class _BatchNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, residual_weight: Tensor | None,
        residual_bias: Tensor | None, norm: nn.BatchNorm2d, residual_norm: nn.BatchNorm2d | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        statistics, factors = _measure(norm, x)
        residual_statistics, residual_factors, bits = statistics, None, None
        if residual is not None:
            residual = residual.contiguous(memory_format=torch.channels_last)
            bits = torch.empty(x.numel() // 8, dtype=torch.uint8, device=x.device)
        if residual_norm is not None:
            assert residual is not None
            residual_statistics, residual_factors = _measure(residual_norm, residual)
        y, kind = _apply(x, residual, factors, residual_factors, bits), _kind(residual, residual_factors)
        ctx.kind = kind
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            x, residual if kind == kernels.NORMALIZED_RESIDUAL else None, bits, weight, residual_weight, statistics,
            residual_statistics, factors,
        )  # fmt: skip
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, bits, weight, residual_weight, statistics, residual_statistics, factors = ctx.saved_tensors
        given = [grad.contiguous(memory_format=torch.channels_last) for grad in grads if grad is not None]
        kind, (parts, blocks) = ctx.kind, _parts(x)
        sums, residual_sums = torch.empty(2, parts, 2, x.shape[1], device=x.device)
        # Without a residual the mask is that of the normalized maps, which are computed again.
        masked = given[0] if kind == kernels.NO_RESIDUAL else torch.empty_like(x)
        residual = x if residual is None else residual
        kernels.sum_gradients[(parts * blocks,)](
            x, residual, given[0], given[-1], x if bits is None else bits, masked, factors, statistics,
            residual_statistics, sums, residual_sums, *_sizes(x), _chunk(x), kind, len(given) == 2, _ROWS, _CHANNELS,
        )  # fmt: skip
        grad_x, of_norm = torch.empty_like(x), _finish_gradients(sums, weight, statistics, x)
        grad_residual, of_residual_norm = masked, of_norm
        if kind == kernels.NORMALIZED_RESIDUAL:
            grad_residual = torch.empty_like(x)
            of_residual_norm = _finish_gradients(residual_sums, residual_weight, residual_statistics, x)
        kernels.apply_backward[_grid(x)](
            x, residual, masked, grad_x, grad_residual, factors, of_norm, of_residual_norm, *_sizes(x), kind, _ROWS,
            _CHANNELS,
        )  # fmt: skip
        # The last two rows are the gradients of weight and bias.
        has_norm = kind == kernels.NORMALIZED_RESIDUAL
        of_parameters = *of_norm[3:], *(of_residual_norm[3:] if has_norm else (None, None))
        return grad_x, None if kind == kernels.NO_RESIDUAL else grad_residual, *of_parameters, None, None


def _sizes(x: Tensor) -> tuple[int, int]:
    """Return pixels and channels."""
    return x.numel() // x.shape[1], x.shape[1]


def _tiles(x: Tensor) -> tuple[int, int]:
    """Return how many tiles share the pixels, and how many the channels."""
    pixels, channels = _sizes(x)
    return triton.cdiv(pixels, _ROWS), triton.cdiv(channels, _CHANNELS)


def _grid(x: Tensor) -> tuple[int]:
    return (math.prod(_tiles(x)),)


def _parts(x: Tensor) -> tuple[int, int]:
    """Return how many programs share the pixels of a sum, and how many its channels."""
    tiles, blocks = _tiles(x)
    return max(1, min(tiles // _MIN_TILES, _PROGRAMS // blocks)), blocks


def _chunk(x: Tensor) -> int:
    """Return the pixels of a program that sums."""
    return triton.cdiv(_sizes(x)[0], _parts(x)[0])


def _measure(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the statistics of x, mean and 1 / deviation, and the factor and addend that normalize it: [2, C] each.

    Updates the running statistics as PyTorch does.
    """
    (parts, blocks), channels = _parts(x), x.shape[1]
    sums = torch.empty(parts, 2, channels, device=x.device)
    kernels.sum_values[(parts * blocks,)](x, norm.running_mean, sums, *_sizes(x), _chunk(x), _ROWS, _CHANNELS)
    statistics, factors = torch.empty(2, 2, channels, device=x.device)
    kernels.finish_forward[(triton.cdiv(channels, _FINISHED_CHANNELS),)](
        sums, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked, statistics,
        factors, *_sizes(x), parts, norm.momentum, norm.eps, _FINISHED_CHANNELS, _PARTS,
    )  # fmt: skip
    return statistics, factors


def _running_factors(norm: nn.BatchNorm2d) -> Tensor:
    """Return the factor and addend by which an evaluation normalizes: [2, C]."""
    channels = norm.num_features
    factors = torch.empty(2, channels, device=norm.weight.device)
    kernels.read_running_statistics[(triton.cdiv(channels, _CHANNELS),)](
        norm.weight, norm.bias, norm.running_mean, norm.running_var, factors, channels, norm.eps, _CHANNELS
    )
    return factors


def _apply(
    x: Tensor, residual: Tensor | None, factors: Tensor, residual_factors: Tensor | None, bits: Tensor | None = None
) -> Tensor:
    """Return the ReLU of the normalized maps, and write into `bits`, if given, where it is positive."""
    y = torch.empty_like(x)
    kernels.apply_forward[_grid(x)](
        x, x if residual is None else residual, y, x if bits is None else bits, factors,
        factors if residual_factors is None else residual_factors, *_sizes(x), _kind(residual, residual_factors),
        bits is not None, _ROWS, _CHANNELS,
    )  # fmt: skip
    return y


def _kind(residual: Tensor | None, residual_factors: Tensor | None) -> int:
    if residual is None:
        return kernels.NO_RESIDUAL
    return kernels.RESIDUAL if residual_factors is None else kernels.NORMALIZED_RESIDUAL


def _finish_gradients(sums: Tensor, weight: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
    """Return [5, C]: factors of gradient and x and the addend of x's gradient, then gradients of weight and bias."""
    result = torch.empty(5, x.shape[1], device=x.device)
    kernels.finish_backward[(triton.cdiv(x.shape[1], _FINISHED_CHANNELS),)](
        sums, weight, statistics, result, *_sizes(x), len(sums), _FINISHED_CHANNELS, _PARTS
    )
    return result
