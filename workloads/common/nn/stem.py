"""The first layers of a ResNet, a 7x7 convolution of stride 2 on pixels and a 3x3 max pooling of stride 2.

Shapes: N images, C channels, maps of [H, W] before and [OH, OW] after a layer. Maps are channels-last.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .autocast import matmul_dtype
from .operators import operator
from .triton_support import tl, triton, triton_available

_BLOCK = 1024  # pooled values of a program
_BLOCK_CELLS = 64  # cells of the unshuffled images, of twelve values each, of a program


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


class MaxPool(nn.Module):
    """3x3 max pooling of stride 2 with a border of 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, C, H/2, W/2], rounded up, of x [N, C, H, W], in its dtype."""
        if not triton_available(x):
            return F.max_pool2d(x, 3, 2, 1)
        pooled: Tensor = _max_pool(x)[0]
        return pooled


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


def _unshuffle_by_kernel(pixels: Tensor, mean: Tensor, std: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the result of `_unshuffle`."""
    (images, _, height, width), borders = pixels.shape, 3
    out_height, out_width = (height + 1) // 2 + borders, (width + 1) // 2 + borders
    out = _empty(pixels, out_height, out_width, dtype, channels=12)
    num_cells = images * out_height * out_width
    image_stride, color_stride, row_stride, column_stride = pixels.stride()
    _normalize_and_unshuffle[(triton.cdiv(num_cells, _BLOCK_CELLS),)](
        pixels_ptr=pixels, mean_ptr=mean, std_ptr=mean if std is None else std, out_ptr=out, num_cells=num_cells,
        H=height, W=width, OH=out_height, OW=out_width, image_stride=image_stride, color_stride=color_stride,
        row_stride=row_stride, column_stride=column_stride, HAS_STD=std is not None, BLOCK=_BLOCK_CELLS,
    )  # fmt: skip
    return out


def _empty(like: Tensor, height: int, width: int, dtype: torch.dtype, channels: int | None = None) -> Tensor:
    shape = (len(like), like.shape[1] if channels is None else channels, height, width)
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


@operator("timetrial::max_pool")
def _max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return y = max of x over 3x3 windows [N, C, OH, OW], and where in its window each is: uint8, from 0 to 8.

    dx is the sum of dy over the windows in which x is the first of the largest values.
    """
    pooled, places = _fake_max_pool(x)
    channels, height, width = x.shape[1:]
    _max_pool_forward[(triton.cdiv(pooled.numel(), _BLOCK),)](
        x_ptr=x.contiguous(memory_format=torch.channels_last), y_ptr=pooled, places_ptr=places, count=pooled.numel(),
        H=height, W=width, OH=pooled.shape[2], OW=pooled.shape[3], C=channels, BLOCK=_BLOCK,
    )  # fmt: skip
    return pooled, places


@torch.library.register_fake("timetrial::max_pool")
def _fake_max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    size = (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2
    return _empty(x, *size, x.dtype), _empty(x, *size, torch.uint8)


@operator("timetrial::max_pool_backward")
def _max_pool_gradient(dy: Tensor, places: Tensor, height: int, width: int) -> Tensor:
    dx = _fake_max_pool_gradient(dy, places, height, width)
    _max_pool_backward[(triton.cdiv(dy.numel(), _BLOCK),)](
        dy_ptr=dy.contiguous(memory_format=torch.channels_last), places_ptr=places, dx_ptr=dx, count=dy.numel(),
        H=height, W=width, OH=dy.shape[2], OW=dy.shape[3], C=dy.shape[1], BLOCK=_BLOCK,
    )  # fmt: skip
    return dx


@torch.library.register_fake("timetrial::max_pool_backward")
def _fake_max_pool_gradient(dy: Tensor, places: Tensor, height: int, width: int) -> Tensor:
    return _empty(dy, height, width, dy.dtype)


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.size = inputs[0].shape[2:]
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, dy: Tensor, _: Tensor | None) -> Tensor:
    (places,), (height, width) = ctx.saved_tensors, ctx.size
    dx: Tensor = _max_pool_gradient(dy, places, height, width)
    return dx


torch.library.register_autograd("timetrial::max_pool", _backward, setup_context=_setup_context)


@triton.jit
def _normalize_and_unshuffle(
    pixels_ptr, mean_ptr, std_ptr, out_ptr, num_cells, H, W, OH, OW, image_stride, color_stride, row_stride,
    column_stride, HAS_STD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the twelve values of each cell of `out`, of the padded 2x2 pixels of three colors."""
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, 16)[None]
    color, exists = channel // 4, (cell < num_cells)[:, None] & (channel < 12)
    image, row, column = cell // (OH * OW), (cell // OW) % OH - 2, cell % OW - 2
    y, x = 2 * row[:, None] + channel // 2 % 2, 2 * column[:, None] + channel % 2
    inside = exists & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    offset = image[:, None] * image_stride + color * color_stride + y * row_stride + x * column_stride
    value = tl.load(pixels_ptr + offset, mask=inside, other=0).to(tl.float32)
    value -= tl.load(mean_ptr + color, mask=channel < 12, other=0.0)
    if HAS_STD:
        value /= tl.load(std_ptr + color, mask=channel < 12, other=1.0)
    value = tl.where(inside, value, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + cell[:, None] * 12 + channel, value, mask=exists)


@triton.jit
def _max_pool_forward(x_ptr, y_ptr, places_ptr, count, H, W, OH, OW, C: tl.constexpr, BLOCK: tl.constexpr):
    """Write the largest of nine values and its place among them, from 0 to 8."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image, row, column, channel = _position(element, OH, OW, C)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.where(row == 0, 3, 0) + tl.where(column == 0, 1, 0)  # the first that is not in the border
    for number in tl.static_range(9):
        y, x = 2 * row - 1 + number // 3, 2 * column - 1 + number % 3
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (element < count)
        offset = ((image * H + y) * W + x) * C + channel
        value = tl.load(x_ptr + offset, mask=inside, other=float("-inf")).to(tl.float32)
        larger = (value > best) | (value != value)  # the first of equal values, as in PyTorch, and NaN
        best, place = tl.where(larger, value, best), tl.where(larger, number, place)
    tl.store(y_ptr + element, best.to(y_ptr.dtype.element_ty), mask=element < count)
    tl.store(places_ptr + element, place.to(tl.uint8), mask=element < count)


@triton.jit
def _max_pool_backward(dy_ptr, places_ptr, dx_ptr, count, H, W, OH, OW, C: tl.constexpr, BLOCK: tl.constexpr):
    """Write the gradients of the 2x2 values around the center of each window, which lie in up to four windows."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    image, row, column, channel = _position(element, OH, OW, C)
    exists = element < count
    has_right, has_below = exists & (column + 1 < OW), exists & (row + 1 < OH)
    right, below = element + C, element + OW * C
    top_left = _dy_at(dy_ptr, places_ptr, element, exists, 4)
    top_right = _dy_at(dy_ptr, places_ptr, element, exists, 5) + _dy_at(dy_ptr, places_ptr, right, has_right, 3)
    bottom_left = _dy_at(dy_ptr, places_ptr, element, exists, 7) + _dy_at(dy_ptr, places_ptr, below, has_below, 1)
    bottom_right = (
        _dy_at(dy_ptr, places_ptr, element, exists, 8)
        + _dy_at(dy_ptr, places_ptr, right, has_right, 6)
        + _dy_at(dy_ptr, places_ptr, below, has_below, 2)
        + _dy_at(dy_ptr, places_ptr, below + C, has_right & has_below, 0)
    )
    target_ptr = dx_ptr + ((image * H + 2 * row) * W + 2 * column) * C + channel
    in_width, in_height = exists & (2 * column + 1 < W), exists & (2 * row + 1 < H)
    dtype: tl.constexpr = dx_ptr.dtype.element_ty
    tl.store(target_ptr, top_left.to(dtype), mask=exists)
    tl.store(target_ptr + C, top_right.to(dtype), mask=in_width)
    tl.store(target_ptr + W * C, bottom_left.to(dtype), mask=in_height)
    tl.store(target_ptr + W * C + C, bottom_right.to(dtype), mask=in_width & in_height)


@triton.jit
def _position(element, OH, OW, C: tl.constexpr):
    """Return image, row, column and channel of a pooled value, 64 bits wide as `element`."""
    cell = element // C
    return cell // OW // OH, cell // OW % OH, cell % OW, element % C


@triton.jit
def _dy_at(dy_ptr, places_ptr, offset, exists, PLACE: tl.constexpr):
    """Return the gradient of a pooled value if the value at PLACE was the largest, else 0."""
    chosen = tl.load(places_ptr + offset, mask=exists, other=255) == PLACE
    return tl.where(chosen, tl.load(dy_ptr + offset, mask=exists, other=0.0).to(tl.float32), 0.0)
