"""The first layers of a ResNet, a 7x7 convolution of stride 2 on pixels and a 3x3 max pooling of stride 2.

Shapes: N images, C channels, maps of [H, W] before and [OH, OW] after the pooling. Maps are channels-last.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .autocast import matmul_dtype
from .triton_support import triton_available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels of PyTorch come without Triton
    triton = None

_BLOCK = 1024  # pooled values of a program
_PLACES = 64  # places of the unshuffled images of a program


class SpaceToDepthConv(nn.Conv2d):
    """The 7x7 convolution of stride 2 on three channels, computed as 4x4 of stride 1 on twelve.

    Each 2x2 pixels become one of twelve channels, and the kernel, padded to 8x8, is rearranged likewise. The sums are
    the same, but tensor cores are better used than with three channels (PERFORMANCE.md of ResNet-50).
    """

    def __init__(self, channels: int) -> None:
        super().__init__(3, channels, kernel_size=7, stride=2, padding=3, bias=False)

    def forward(  # type: ignore[override]
        self, pixels: Tensor, mean: Tensor, std: Tensor | None = None
    ) -> Tensor:
        """Return [N, C, H/2, W/2], rounded up, of (pixels - mean) / std [N, 3, H, W]; mean and std are [1, 3, 1, 1].

        Pixels of a floating-point dtype may get no gradient.
        """
        unshuffle = _unshuffle_by_kernel if _has_kernel(pixels) else _unshuffle
        images = unshuffle(pixels, mean, std, matmul_dtype(self.weight))
        out_channels, in_channels = self.weight.shape[:2]
        padded = F.pad(self.weight, (1, 0, 1, 0)).view(out_channels, in_channels, 4, 2, 4, 2)
        kernel = padded.permute(0, 1, 3, 5, 2, 4).reshape(out_channels, in_channels * 4, 4, 4)
        return F.conv2d(images, kernel)


def _has_kernel(pixels: Tensor) -> bool:
    return triton_available(pixels) and not torch.compiler.is_compiling()  # a compiler fuses the operations itself


def _unshuffle(pixels: Tensor, mean: Tensor, std: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the normalized pixels [N, 12, H/2 + 3, W/2 + 3], with the border that the convolution needs."""
    images = pixels.to(mean.dtype) - mean
    images = images if std is None else images / std
    odd = (0, images.shape[3] % 2, 0, images.shape[2] % 2)
    if any(odd):  # padded with zeros as at a border
        images = F.pad(images, odd)
    return F.pad(F.pixel_unshuffle(images, 2).to(dtype), (2, 1, 2, 1))


class MaxPool(nn.Module):
    """3x3 max pooling of stride 2 with a border of 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, C, H/2, W/2], rounded up, of x [N, C, H, W]."""
        if not triton_available(x):
            return F.max_pool2d(x, 3, 2, 1)
        pooled: Tensor = _max_pool(x)[0]
        return pooled


if triton is not None:

    @triton.jit
    def _normalize_and_unshuffle(
        pixels, mean, std, out, count, H, W, OH, OW, image_stride, color_stride, row_stride, column_stride,
        HAS_STD: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Write the twelve values of each place of `out`, of the padded 2x2 pixels of three colors."""
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        channel = tl.arange(0, 16)[None]
        color, exists = channel // 4, (place < count)[:, None] & (channel < 12)
        image, row, column = place // (OH * OW), (place // OW) % OH - 2, place % OW - 2
        y, x = 2 * row[:, None] + channel // 2 % 2, 2 * column[:, None] + channel % 2
        inside = exists & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        offset = image[:, None] * image_stride + color * color_stride + y * row_stride + x * column_stride
        value = tl.load(pixels + offset, mask=inside, other=0).to(tl.float32)
        value -= tl.load(mean + color, mask=channel < 12, other=0.0)
        if HAS_STD:
            value /= tl.load(std + color, mask=channel < 12, other=1.0)
        value = tl.where(inside, value, 0.0).to(out.dtype.element_ty)
        tl.store(out + place[:, None] * 12 + channel, value, mask=exists)

    @triton.jit
    def _position(element, OH, OW, C: tl.constexpr):
        """Return image, row, column and channel of a pooled value."""
        cell = element // C
        return (cell // OW // OH).to(tl.int64), cell // OW % OH, cell % OW, element % C

    @triton.jit
    def _pool(x, pooled, places, count, H, W, OH, OW, C: tl.constexpr, BLOCK: tl.constexpr):
        """Write the largest of nine values and its place among them, from 0 to 8."""
        element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        image, row, column, channel = _position(element, OH, OW, C)
        best = tl.full((BLOCK,), float("-inf"), tl.float32)
        place = tl.where(row == 0, 3, 0) + tl.where(column == 0, 1, 0)  # the first that is not in the border
        for number in tl.static_range(9):
            y, x_position = 2 * row - 1 + number // 3, 2 * column - 1 + number % 3
            inside = (y >= 0) & (y < H) & (x_position >= 0) & (x_position < W) & (element < count)
            offset = ((image * H + y) * W + x_position) * C + channel
            value = tl.load(x + offset, mask=inside, other=float("-inf")).to(tl.float32)
            larger = (value > best) | (value != value)  # the first of equal values, as in PyTorch, and NaN
            best, place = tl.where(larger, value, best), tl.where(larger, number, place)
        tl.store(pooled + element, best.to(pooled.dtype.element_ty), mask=element < count)
        tl.store(places + element, place.to(tl.uint8), mask=element < count)

    @triton.jit
    def _gradient_at(grad, places, offset, exists, PLACE: tl.constexpr):
        """Return the gradient of a pooled value if the value at PLACE was the largest, else 0."""
        chosen = tl.load(places + offset, mask=exists, other=255) == PLACE
        return tl.where(chosen, tl.load(grad + offset, mask=exists, other=0.0).to(tl.float32), 0.0)

    @triton.jit
    def _unpool(grad, places, out, count, H, W, OH, OW, C: tl.constexpr, BLOCK: tl.constexpr):
        """Write the gradients of the 2x2 values around the center of each window, which lie in up to four windows."""
        element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        image, row, column, channel = _position(element, OH, OW, C)
        exists = element < count
        has_right, has_below = exists & (column + 1 < OW), exists & (row + 1 < OH)
        right, below = element + C, element + OW * C
        top_left = _gradient_at(grad, places, element, exists, 4)
        top_right = _gradient_at(grad, places, element, exists, 5) + _gradient_at(grad, places, right, has_right, 3)
        bottom_left = _gradient_at(grad, places, element, exists, 7) + _gradient_at(grad, places, below, has_below, 1)
        bottom_right = (
            _gradient_at(grad, places, element, exists, 8)
            + _gradient_at(grad, places, right, has_right, 6)
            + _gradient_at(grad, places, below, has_below, 2)
            + _gradient_at(grad, places, below + C, has_right & has_below, 0)
        )
        target = out + ((image * H + 2 * row) * W + 2 * column) * C + channel
        in_width, in_height = exists & (2 * column + 1 < W), exists & (2 * row + 1 < H)
        dtype: tl.constexpr = out.dtype.element_ty
        tl.store(target, top_left.to(dtype), mask=exists)
        tl.store(target + C, top_right.to(dtype), mask=in_width)
        tl.store(target + W * C, bottom_left.to(dtype), mask=in_height)
        tl.store(target + W * C + C, bottom_right.to(dtype), mask=in_width & in_height)


def _unshuffle_by_kernel(pixels: Tensor, mean: Tensor, std: Tensor | None, dtype: torch.dtype) -> Tensor:
    (images, _, height, width), borders = pixels.shape, 3
    size = (height + 1) // 2 + borders, (width + 1) // 2 + borders
    out = _empty(pixels, *size, dtype, channels=12)
    count = images * size[0] * size[1]
    _normalize_and_unshuffle[(triton.cdiv(count, _PLACES),)](
        pixels, mean, mean if std is None else std, out, count, height, width, *size, *pixels.stride(),
        std is not None, _PLACES,
    )  # fmt: skip
    return out


def _empty(like: Tensor, height: int, width: int, dtype: torch.dtype, channels: int | None = None) -> Tensor:
    shape = (len(like), like.shape[1] if channels is None else channels, height, width)
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


@torch.library.custom_op("timetrial::max_pool", mutates_args=())
def _max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    pooled, places = _fake_max_pool(x)
    (channels, height, width), count = x.shape[1:], pooled.numel()
    x = x.contiguous(memory_format=torch.channels_last)
    sizes = count, height, width, *pooled.shape[2:], channels, _BLOCK
    _pool[(triton.cdiv(count, _BLOCK),)](x, pooled, places, *sizes)
    return pooled, places


@_max_pool.register_fake
def _fake_max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    size = (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2
    return _empty(x, *size, x.dtype), _empty(x, *size, torch.uint8)


@torch.library.custom_op("timetrial::max_pool_backward", mutates_args=())
def _max_pool_backward(grad: Tensor, places: Tensor, height: int, width: int) -> Tensor:
    out, count = _empty(grad, height, width, grad.dtype), grad.numel()
    grad = grad.contiguous(memory_format=torch.channels_last)
    sizes = count, height, width, *grad.shape[2:], grad.shape[1], _BLOCK
    _unpool[(triton.cdiv(count, _BLOCK),)](grad, places, out, *sizes)
    return out


@_max_pool_backward.register_fake
def _(grad: Tensor, places: Tensor, height: int, width: int) -> Tensor:
    return _empty(grad, height, width, grad.dtype)


def _setup_context(ctx, inputs, output):
    ctx.size = inputs[0].shape[2:]
    ctx.save_for_backward(output[1])


def _backward(ctx, grad, _):
    return _max_pool_backward(grad, ctx.saved_tensors[0], *ctx.size)


_max_pool.register_autograd(_backward, setup_context=_setup_context)
