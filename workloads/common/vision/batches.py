"""Batches of the image pipeline: encoded images with their crops, and transformed images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_BYTES_BY_VALUE = 1 << 20  # largest tensor that costs less to copy through a pipe


class _WorkerBatch:
    """Tensors and tuples of tensors that worker processes send, small ones by value.

    Tensors in shared memory need a file each, which took two thirds of the time of a batch of small images.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: _each_tensor(_by_value, value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: _each_tensor(_to_tensor, value) for name, value in state.items()})


def _each_tensor(function: Callable[[Any], Any], value: Any) -> Any:
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def _by_value(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) and value.nbytes <= _BYTES_BY_VALUE else value


def _to_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@dataclass
class EncodedBatch(_WorkerBatch):
    """A batch of JPEGs, concatenated in `data` (uint8), with their crops.

    `lengths` int64 [N] in bytes, `sizes` int32 [N, 2] (height, width), `boxes` int32 [N, 4] (top, left, height, width),
    `flipped` bool [N], `targets` as `Transform.collate` returns them, `params` [N, ...] each; `indices` in the source.
    """

    data: Tensor
    lengths: Tensor
    sizes: Tensor
    boxes: Tensor
    flipped: Tensor
    targets: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    indices: Sequence[int]

    def pin_memory(self) -> "EncodedBatch":
        """Return the batch with its JPEGs in pinned memory; called by the DataLoader's pinning thread.

        The other tensors are copied, because each tensor that a worker process shares keeps a file open.
        """
        return EncodedBatch(
            self.data.pin_memory(),
            self.lengths.clone(),
            self.sizes.clone(),
            self.boxes.clone(),
            self.flipped.clone(),
            tuple(target.clone() for target in self.targets),
            tuple(param.clone() for param in self.params),
            self.indices,
        )

    def jpegs(self) -> list[Tensor]:
        """Return one uint8 tensor per image, a view of `data`."""
        return list(self.data.split(self.lengths.tolist()))


@dataclass
class ImageBatch(_WorkerBatch):
    """Transformed images, uint8 [N, H, W, 3] in RGB, and their collated targets."""

    pixels: Tensor
    targets: tuple[Tensor, ...]

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors of the batch."""
        return (self.pixels, *self.targets)

    def pin_memory(self) -> "ImageBatch":
        """Return the batch in pinned memory; called by the DataLoader's pinning thread."""
        return ImageBatch(self.pixels.pin_memory(), tuple(target.pin_memory() for target in self.targets))

    def to(self, device: torch.device) -> "ImageBatch":
        """Return the batch on `device`; the copy from pinned memory is asynchronous."""
        pixels, *targets = (tensor.to(device, non_blocking=True) for tensor in self.tensors())
        return ImageBatch(pixels, tuple(targets))
