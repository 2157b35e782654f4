"""The micro-benchmarks of `timetrial peaks`: single operations of deep learning over sizes and number formats.

Each has a `storage` format, of the tensors in memory, and a `compute` format, of the arithmetic. fp32 tensors are
multiplied in fp32 or, on matrix units, in tf32: a switch of the framework. fp16 and bf16 have no such switch: their
products use matrix units wherever there are any. Without them, the operands are converted to fp32 first, and that pass
over memory is part of the measurement. Accumulation follows PyTorch's defaults. Operands are normally distributed, like
weights and activations: on zeros a GPU draws less power and clocks higher.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NATIVE = (("fp32", "fp32"), ("fp32", "tf32"), ("bf16", "bf16"), ("fp16", "fp16"))
_CONVERTED = (("bf16", "fp32"), ("fp16", "fp32"))


@dataclass(frozen=True)
class Case:
    """One operation at one size: `make` creates operands on a device and returns a function that runs it once.

    `operations` counts a multiply-add as two. `moved_bytes` is the least memory traffic: each operand read once and
    each result written once; a copy counts both sides. `operand_bytes` is the size of the operands of one call.
    `is_minimal` is False if there are algorithms with fewer operations than are counted.
    """

    kind: str
    shape: str
    storage: str
    compute: str
    operations: float
    moved_bytes: float
    operand_bytes: float
    make: Callable[[torch.device], Callable[[], object]]
    is_minimal: bool = True


Series = Sequence[Case]  # by size: after a case that takes too long, the larger ones are skipped


def gemm(quick: bool) -> Iterator[Series]:
    """Yield square matrix products, then those of layers of 1024 and 4096 units and of an output vocabulary.

    The vocabulary is MLPerf's, 33,708 entries padded to a multiple of 8; without padding it takes three times as long.
    """
    squares = [(n, n, n) for n in ((512, 1024, 2048) if quick else (512, 1024, 2048, 4096, 8192, 16384))]
    layers = [(8192, 4096, 1024), (8192, 1024, 4096), (8192, 33712, 1024), (64, 4096, 4096)]
    for storage, compute in (*_NATIVE, *_CONVERTED):
        yield [_gemm(storage, compute, *sizes) for sizes in squares]
        if not quick:
            yield from ([_gemm(storage, compute, *sizes)] for sizes in layers)


def _gemm(storage: str, compute: str, m: int, n: int, k: int) -> Case:
    dtype = DTYPES[storage]

    def make(device: torch.device) -> Callable[[], object]:
        a, b = normal(device, dtype, m, k), normal(device, dtype, k, n)
        out = torch.empty(m, n, dtype=dtype, device=device)
        if storage != compute and compute == "fp32":
            return lambda: out.copy_(a.float() @ b.float())
        return lambda: torch.mm(a, b, out=out)

    moved = dtype.itemsize * (m * k + k * n + m * n)
    return Case("gemm", f"{m} x {n} x {k}", storage, compute, 2.0 * m * n * k, moved, moved, make)


# Input channels, output channels, image size, kernel size, stride: of ResNet-50 (He et al. 2016) and VGG-16.
_CONVOLUTIONS = (
    (64, 64, 56, 3, 1),
    (1024, 256, 14, 1, 1),
    (256, 256, 14, 3, 1),
    (64, 64, 224, 3, 1),
    (512, 512, 28, 3, 1),
)


def convolution(quick: bool) -> Iterator[Series]:
    """Yield the forward pass, and training with both gradients; channels last, the layout of tensor-core kernels."""
    for storage, compute in (*_NATIVE, *_CONVERTED):
        batches = (1, 4) if quick else (64,)
        for shape in _CONVOLUTIONS[: 1 if quick else None]:
            for is_training in (False, True):
                yield [_convolution(storage, compute, batch, *shape, is_training=is_training) for batch in batches]


def _convolution(
    storage: str, compute: str, batch: int, in_channels: int, out_channels: int, size: int, kernel: int, stride: int, *,
    is_training: bool,
) -> Case:  # fmt: skip
    dtype, compute_dtype = DTYPES[storage], DTYPES.get(compute, torch.float32)
    out_size = (size - 1) // stride + 1

    def make(device: torch.device) -> Callable[[], object]:
        x = normal(device, dtype, batch, in_channels, size, size).to(memory_format=torch.channels_last)
        w = normal(device, dtype, out_channels, in_channels, kernel, kernel).to(memory_format=torch.channels_last)
        grad_out = normal(device, dtype, batch, out_channels, out_size, out_size).to(memory_format=torch.channels_last)

        def forward() -> Tensor:
            return F.conv2d(x.to(compute_dtype), w.to(compute_dtype), stride=stride, padding=kernel // 2).to(dtype)

        return _forward_and_backward(forward, (x, w), grad_out) if is_training else forward

    out_numel = batch * out_channels * out_size**2
    operand_bytes = dtype.itemsize * (
        batch * in_channels * size**2 + out_channels * in_channels * kernel**2 + out_numel
    )
    operations = 2.0 * out_numel * in_channels * kernel**2
    shape = f"{batch} x {in_channels} x {size}², {out_channels} of {kernel}²{f' by {stride}' if stride > 1 else ''}"
    passes, suffix = (3, ", training") if is_training else (1, "")
    # Training reads x and w twice and writes their gradients; it writes the output and reads its gradient.
    moved = 3 * operand_bytes - dtype.itemsize * out_numel if is_training else operand_bytes
    # Winograd's algorithm computes a 3x3 convolution with as little as 1/2.25 of the products (Lavin and Gray 2015).
    return Case(
        "convolution", shape + suffix, storage, compute, passes * operations, moved, operand_bytes, make,
        is_minimal=kernel == 1,
    )  # fmt: skip


def lstm(quick: bool) -> Iterator[Series]:
    """Yield the training of a layer of 1024 units over 32 positions at increasing batch sizes."""
    width, positions = (256, 8) if quick else (1024, 32)
    for storage, compute in _NATIVE:
        yield [_lstm(storage, compute, batch, positions, width) for batch in ((16, 64) if quick else (64, 256, 1024))]


def _lstm(storage: str, compute: str, batch: int, positions: int, width: int) -> Case:
    dtype = DTYPES[storage]

    def make(device: torch.device) -> Callable[[], object]:
        # For formats that it does not expect, PyTorch copies the weights at each call, and warns once.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        layer = torch.nn.LSTM(width, width, device=device, dtype=dtype)
        x, grad_out = (normal(device, dtype, positions, batch, width) for _ in range(2))
        return _forward_and_backward(lambda: layer(x)[0], (x, *layer.parameters()), grad_out)

    rows, weights = batch * positions, 8 * width**2
    operand_bytes = dtype.itemsize * (2 * rows * width + weights)
    shape = f"{batch} x {positions} x {width}, training"
    moved = 3 * operand_bytes - dtype.itemsize * rows * width
    return Case("lstm", shape, storage, compute, 3 * 2.0 * rows * weights, moved, operand_bytes, make)


def attention(quick: bool) -> Iterator[Series]:
    """Yield the training of unmasked attention with 16 heads of 64, at increasing sequence lengths."""
    for storage, compute in _NATIVE:
        if compute == "tf32":  # attention kernels ignore the switch
            continue
        yield [_attention(storage, compute, 2, length) for length in ((128, 256) if quick else (512, 2048, 8192))]


def _attention(storage: str, compute: str, batch: int, length: int) -> Case:
    dtype, heads, width = DTYPES[storage], 16, 64

    def make(device: torch.device) -> Callable[[], object]:
        q, k, v, grad_out = (normal(device, dtype, batch, heads, length, width) for _ in range(4))
        return _forward_and_backward(lambda: F.scaled_dot_product_attention(q, k, v), (q, k, v), grad_out)

    # Two products forward; five backward, one of them recomputed, as torch's FLOP counter counts them.
    operations = 7 * 2.0 * batch * heads * length**2 * width
    operand_bytes = dtype.itemsize * 4 * batch * heads * length * width
    shape = f"{batch} x {heads} x {length} x {width}, training"
    # Keeping the scores instead of recomputing them takes fewer operations.
    return Case(
        "attention", shape, storage, compute, operations, 3 * operand_bytes, operand_bytes, make, is_minimal=False
    )


def copy(quick: bool) -> Iterator[Series]:
    """Yield copies within the device's memory; bytes read and bytes written both count."""
    yield [_copy(mib) for mib in ((64, 256) if quick else (64, 256, 1024, 4096))]


def _copy(mib: int) -> Case:
    def make(device: torch.device) -> Callable[[], object]:
        source = normal(device, torch.float32, mib * 2**18)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    size = mib * 2.0**20
    return Case("copy", f"{mib} MiB", "fp32", "", 0.0, 2 * size, 2 * size, make)


def transfer(quick: bool) -> Iterator[Series]:
    """Yield copies between host and device in both directions, with pinned and with pageable host memory."""
    for pinned in (True, False):
        for to_device in (True, False):
            yield [_transfer(mib, pinned, to_device) for mib in ((16,) if quick else (1, 16, 256))]


def _transfer(mib: int, pinned: bool, to_device: bool) -> Case:
    def make(device: torch.device) -> Callable[[], object]:
        on_device = normal(device, torch.float32, mib * 2**18)
        on_host = torch.randn(mib * 2**18)
        on_host = on_host.pin_memory() if pinned else on_host
        source, target = (on_host, on_device) if to_device else (on_device, on_host)
        return lambda: target.copy_(source, non_blocking=pinned)

    direction = "host to device" if to_device else "device to host"
    shape = f"{mib} MiB, {direction}, {'pinned' if pinned else 'pageable'}"
    return Case("transfer", shape, "fp32", "", 0.0, mib * 2.0**20, 2 * mib * 2.0**20, make)


KINDS: dict[str, Callable[[bool], Iterator[Series]]] = {
    "gemm": gemm,
    "convolution": convolution,
    "lstm": lstm,
    "attention": attention,
    "copy": copy,
    "transfer": transfer,
}


def normal(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(shape, device=device, dtype=dtype)


def _forward_and_backward(
    forward: Callable[[], Tensor], inputs: Sequence[Any], grad_out: Tensor
) -> Callable[[], object]:
    """Return a function that runs `forward` and computes the gradients of `inputs`."""
    for tensor in inputs:
        tensor.requires_grad_(True)
    return lambda: torch.autograd.grad(forward(), inputs, grad_out)
