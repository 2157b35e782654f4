"""What runs on the GPUs of each vendor: used, replaced, missing or refused. Tests compare it with the code.

docs/vendors.md and `timetrial doctor --paths` show it.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby

VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel", "mps": "Apple", "cpu": "CPU"}
"""Vendors by the kind of the PyTorch build, as `PyTorchBuild.kind` has it."""


class Support(StrEnum):
    """Whether a vendor's devices take a path."""

    USED = "used"
    REPLACED = "replaced"
    MISSING = "missing"
    REFUSED = "refused"


@dataclass(frozen=True)
class VendorPath:
    """What happens on one vendor's devices, and in which words."""

    support: Support
    text: str

    def __str__(self) -> str:
        return f"{self.support}: {self.text}"


def _used(text: str) -> VendorPath:
    return VendorPath(Support.USED, text)


def _replaced(text: str) -> VendorPath:
    return VendorPath(Support.REPLACED, text)


def _missing(text: str) -> VendorPath:
    return VendorPath(Support.MISSING, text)


def _refused(text: str) -> VendorPath:
    return VendorPath(Support.REFUSED, text)


def _row(*paths: VendorPath) -> dict[str, VendorPath]:
    """Return the paths of a row by vendor; the last one also holds for the vendors that follow."""
    last = len(paths) - 1
    return {kind: paths[min(index, last)] for index, kind in enumerate(VENDORS)}


PATHS: dict[str, dict[str, VendorPath]] = {
    "captured steps": _row(_used("CUDA graphs"), _replaced("Python submits every kernel")),
    "captured beam search": _row(_used("CUDA graphs"), _replaced("Python submits every kernel")),
    "custom kernels": _row(
        _used("Triton"),
        _used("Triton; compiled for gfx90a and gfx942 by a test"),
        _used("Triton of the XPU build"),
        _replaced("PyTorch's operations"),
        _replaced("PyTorch's operations"),
    ),
    "torch.compile by default": _row(
        _used("compute capability 8.0 and later, at the scale reference"),
        _replaced("eager unless engine.compile is set"),
    ),
    "convolution plans": _row(
        _used("cuDNN's first choice; with engine.cudnn_benchmark=true, the fastest of ten"),
        _replaced("MIOpen chooses, and searches with engine.cudnn_benchmark=true"),
        _replaced("oneDNN chooses"),
        _replaced("Metal chooses"),
        _replaced("oneDNN chooses"),
    ),
    "JPEG decoding on the device": _row(
        _used("nvJPEG, or torchvision without JPEG engines"), _replaced("Pillow in worker processes")
    ),
    "pinned memory": _row(
        _used("tokens and indices; images that workers decoded"),
        _used("tokens and indices; images are copied from pageable memory"),
        _used("tokens and indices; images are copied from pageable memory"),
        _used("tokens and indices; images are copied from pageable memory"),
        _missing("nothing is copied"),
    ),
    "power, clocks, temperature": _row(
        _used("NVML"), _used("amdsmi"), _used("xpu-smi"), _missing("sensors need root"), _missing("host only")
    ),
    "energy counter": _row(
        _used("NVML; before V100, and on T4, the integral of power"),
        _used("amdsmi"),
        _used("xpu-smi"),
        _missing("no energy is reported"),
        _missing("RAPL counts the host's energy"),
    ),
    "all-reduce": _row(_used("NCCL"), _used("RCCL"), _used("XCCL"), _refused("use gpus=1"), _used("Gloo")),
    "peer_to_peer=false": _row(
        _used("NCCL_P2P_DISABLE"),
        _used("NCCL_P2P_DISABLE, which RCCL reads"),
        _refused("leave peer_to_peer out"),
        _refused("use gpus=1"),
        _missing("ranks share the host's memory"),
    ),
    "precision=fp32": _row(_used("without Tensor Cores"), _used("32-bit floats")),
    "precision=tf32": _row(
        _used("compute capability 8.0 and later; refused before: use precision=fp32 or precision=fp16"),
        _refused("use precision=fp32 or precision=fp16"),
    ),
    "precision=bf16": _row(
        _used("compute capability 8.0 and later; refused before: use precision=fp16"), _used("autocast")
    ),
    "precision=fp16": _row(_used("autocast and loss scaling")),
    "precision=fp8": _row(_refused("choose one of bf16, fp16, fp32, tf32")),
    "float64 on the device": _row(
        _used("rasterization of masks"),
        _used("rasterization of masks"),
        _used("where the GPU has it; else the CPU rasterizes masks"),
        _replaced("the CPU rasterizes masks"),
        _used("all float64 arithmetic"),
    ),
    "profiler": _row(
        _used("kernels and host"),
        _used("kernels and host"),
        _used("kernels and host"),
        _replaced("host only"),
        _replaced("host only"),
    ),
    "timing of data waits": _row(
        _used("events of the device"),
        _used("events of the device"),
        _used("events of the device"),
        _replaced("clock of the host"),
        _replaced("clock of the host"),
    ),
    "peak memory": _row(
        _used("PyTorch's allocator"),
        _used("PyTorch's allocator"),
        _used("PyTorch's allocator"),
        _missing("not measured"),
        _missing("not measured"),
    ),
}
"""The paths that depend on the device: name, then what each vendor's devices do."""


def to_json() -> dict[str, dict[str, dict[str, str]]]:
    """Return the paths as JSON objects: name, kind of the PyTorch build, `support` and `text`."""
    return {name: {kind: asdict(path) for kind, path in row.items()} for name, row in PATHS.items()}


def to_markdown() -> str:
    """Return the paths as a Markdown table."""
    lines = [f"| path | {' | '.join(VENDORS.values())} |", f"|---{'|---' * len(VENDORS)}|"]
    lines += [f"| {name} | {' | '.join(map(str, row.values()))} |" for name, row in PATHS.items()]
    return "\n".join(lines) + "\n"


def to_text() -> str:
    """Return the paths as lines for a terminal; vendors whose devices do the same share a line."""
    lines = []
    for name, row in PATHS.items():
        lines.append(name)
        for path, kinds in groupby(row, lambda kind, row=row: row[kind]):  # type: ignore[misc]
            lines.append(f"  {', '.join(VENDORS[kind] for kind in kinds):<26} {path}")
    return "\n".join(lines)
