"""What `timetrial peaks` times: single operations of deep learning, each over sizes and number formats.

Two things are told apart, as tensors are: `storage`, the format in memory, and `compute`, that of the arithmetic.
fp32 in memory is multiplied in fp32 or, on matrix units, in tf32: a switch of the framework. Half formats have none:
their products are made by matrix units wherever there are some; what can be had without is their numbers widened and
multiplied in fp32, which costs a pass over memory, timed along. Sums are kept as PyTorch has it unless told. Operands
are normally distributed, as weights and activations are: zeros draw less power, and a card clocks higher.
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
_WIDENED = (("bf16", "fp32"), ("fp16", "fp32"))


@dataclass(frozen=True)
class Case:
    """One operation: `make` draws operands on a device and returns what runs it once.

    `operations` count a multiply-add as two; `moved_bytes` is the least traffic of the memory: each operand read once,
    each result written once, for copies both sides. `held_bytes` is what the operands of one call take. `fewest` is
    False where there are algorithms that do fewer operations than are counted.
    """

    kind: str
    shape: str
    storage: str
    compute: str
    operations: float
    moved_bytes: float
    held_bytes: float
    make: Callable[[torch.device], Callable[[], object]]
    fewest: bool = True


Series = Sequence[Case]  # of growing size: where one takes too long, those after it are left out


def gemm(quick: bool) -> Iterator[Series]:
    """Square products, then those of layers between 1024 and 4096 units and of an output vocabulary: [m, k] [k, n].

    The vocabulary is MLPerf's of 33,708 in rows of eight, as models here have it: as it is, it takes thrice as long.
    """
    squares = [(n, n, n) for n in ((512, 1024, 2048) if quick else (512, 1024, 2048, 4096, 8192, 16384))]
    layers = [(8192, 4096, 1024), (8192, 1024, 4096), (8192, 33712, 1024), (64, 4096, 4096)]
    for storage, compute in (*_NATIVE, *_WIDENED):
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


# Channels in and out, edge of the picture, edge of the kernel, stride: of ResNet-50 (He et al. 2016) and of VGG-16.
_CONVOLUTIONS = (
    (64, 64, 56, 3, 1),
    (1024, 256, 14, 1, 1),
    (256, 256, 14, 3, 1),
    (64, 64, 224, 3, 1),
    (512, 512, 28, 3, 1),
)


def convolution(quick: bool) -> Iterator[Series]:
    """Forward, and forward with both gradients; channels last, as tensor-core kernels want them."""
    for storage, compute in (*_NATIVE, *_WIDENED):
        batches = (1, 4) if quick else (64,)
        for shape in _CONVOLUTIONS[: 1 if quick else None]:
            for trains in (False, True):
                yield [_convolution(storage, compute, batch, *shape, trains=trains) for batch in batches]


def _convolution(
    storage: str, compute: str, batch: int, channels: int, kernels: int, edge: int, kernel: int, stride: int, *,
    trains: bool,
) -> Case:  # fmt: skip
    dtype, wide = DTYPES[storage], DTYPES.get(compute, torch.float32)
    out_edge = (edge - 1) // stride + 1

    def make(device: torch.device) -> Callable[[], object]:
        x = normal(device, dtype, batch, channels, edge, edge).to(memory_format=torch.channels_last)
        w = normal(device, dtype, kernels, channels, kernel, kernel).to(memory_format=torch.channels_last)
        given = normal(device, dtype, batch, kernels, out_edge, out_edge).to(memory_format=torch.channels_last)

        def forward() -> Tensor:
            return F.conv2d(x.to(wide), w.to(wide), stride=stride, padding=kernel // 2).to(dtype)

        return _training(forward, (x, w), given) if trains else forward

    given_size = batch * kernels * out_edge**2
    held = dtype.itemsize * (batch * channels * edge**2 + kernels * channels * kernel**2 + given_size)
    operations = 2.0 * given_size * channels * kernel**2
    shape = f"{batch} x {channels} x {edge}², {kernels} of {kernel}²{f' by {stride}' if stride > 1 else ''}"
    times, way = (3, ", training") if trains else (1, "")
    # Training, x and w are read twice and their gradients written, the output is written and its gradient read.
    moved = 3 * held - dtype.itemsize * given_size if trains else held
    # Lavin and Gray 2015: Winograd's algorithm makes a 3x3 convolution of down to 1/2.25 of the multiplications.
    return Case("convolution", shape + way, storage, compute, times * operations, moved, held, make, fewest=kernel == 1)


def lstm(quick: bool) -> Iterator[Series]:
    """A layer of 1024 units over 32 positions, forward and back, as translators have it, at growing batches."""
    width, positions = (256, 8) if quick else (1024, 32)
    for storage, compute in _NATIVE:
        yield [_lstm(storage, compute, batch, positions, width) for batch in ((16, 64) if quick else (64, 256, 1024))]


def _lstm(storage: str, compute: str, batch: int, positions: int, width: int) -> Case:
    dtype = DTYPES[storage]

    def make(device: torch.device) -> Callable[[], object]:
        # PyTorch lays the weights of formats that it does not expect out anew at each call, and says so once.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        layer = torch.nn.LSTM(width, width, device=device, dtype=dtype)
        x, given = (normal(device, dtype, positions, batch, width) for _ in range(2))
        return _training(lambda: layer(x)[0], (x, *layer.parameters()), given)

    rows, weights = batch * positions, 8 * width**2
    held = dtype.itemsize * (2 * rows * width + weights)
    shape = f"{batch} x {positions} x {width}, training"
    moved = 3 * held - dtype.itemsize * rows * width
    return Case("lstm", shape, storage, compute, 3 * 2.0 * rows * weights, moved, held, make)


def attention(quick: bool) -> Iterator[Series]:
    """Of 16 heads of 64 over growing sentences, forward and back, nothing hidden."""
    for storage, compute in _NATIVE:
        if compute == "tf32":  # which attention's kernels do not ask for
            continue
        yield [_attention(storage, compute, 2, length) for length in ((128, 256) if quick else (512, 2048, 8192))]


def _attention(storage: str, compute: str, batch: int, length: int) -> Case:
    dtype, heads, width = DTYPES[storage], 16, 64

    def make(device: torch.device) -> Callable[[], object]:
        q, k, v, given = (normal(device, dtype, batch, heads, length, width) for _ in range(4))
        return _training(lambda: F.scaled_dot_product_attention(q, k, v), (q, k, v), given)

    # Two products forward; five backward, one of them made again: as torch's counter of operations has it.
    operations = 7 * 2.0 * batch * heads * length**2 * width
    held = dtype.itemsize * 4 * batch * heads * length * width
    shape = f"{batch} x {heads} x {length} x {width}, training"
    # Who keeps the scores instead of making them again does fewer.
    return Case("attention", shape, storage, compute, operations, 3 * held, held, make, fewest=False)


def copy(quick: bool) -> Iterator[Series]:
    """From one place of the device's memory to another; bytes read and bytes written both count."""
    yield [_copy(mib) for mib in ((64, 256) if quick else (64, 256, 1024, 4096))]


def _copy(mib: int) -> Case:
    def make(device: torch.device) -> Callable[[], object]:
        source = normal(device, torch.float32, mib * 2**18)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    size = mib * 2.0**20
    return Case("copy", f"{mib} MiB", "fp32", "", 0.0, 2 * size, 2 * size, make)


def transfer(quick: bool) -> Iterator[Series]:
    """Between host and device, from memory that the kernel may not move (pinned) and from any (pageable)."""
    for pinned in (True, False):
        for up in (True, False):
            yield [_transfer(mib, pinned, up) for mib in ((16,) if quick else (1, 16, 256))]


def _transfer(mib: int, pinned: bool, up: bool) -> Case:
    def make(device: torch.device) -> Callable[[], object]:
        there = normal(device, torch.float32, mib * 2**18)
        here = torch.randn(mib * 2**18)
        here = here.pin_memory() if pinned else here
        source, target = (here, there) if up else (there, here)
        return lambda: target.copy_(source, non_blocking=pinned)

    way = "host to device" if up else "device to host"
    shape = f"{mib} MiB, {way}, {'pinned' if pinned else 'pageable'}"
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
    """Standard normal numbers."""
    return torch.randn(shape, device=device, dtype=dtype)


def _training(forward: Callable[[], Tensor], inputs: Sequence[Any], given: Tensor) -> Callable[[], object]:
    """`forward` and the gradients of `inputs`."""
    for one in inputs:
        one.requires_grad_(True)
    return lambda: torch.autograd.grad(forward(), inputs, given)
