"""Devices of PyTorch's backends (CUDA, ROCm, XPU, MPS, CPU) behind one interface."""

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.utils import _pytree as pytree

from ..core.errors import DeviceError
from . import host
from .pytorch_build import PyTorchBuild

# Accelerators with a file in conf/accelerator, by what the driver calls the device.
_NAME_PATTERNS = {"t4": r"\bT4\b", "v100": r"\bV100\b", "a100": r"\bA100\b", "h100": r"\bH100\b", "h200": r"\bH200\b"}
# Environment variables that restrict which devices a process sees.
VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_COLLECTIVE_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
_DEFAULT_CACHE_BYTES = 2**26


def detect_accelerator() -> str:
    """Return the accelerator config of this machine: a known GPU, `cpu` without a GPU, else `auto`."""
    if not torch.accelerator.is_available():
        return "cpu"
    name = device_name(torch.device(accelerator_type(), 0))
    return next((config for config, pattern in _NAME_PATTERNS.items() if re.search(pattern, name)), "auto")


def accelerator_type() -> str:
    """Return the device type of PyTorch's accelerator, such as "cuda"; there must be one."""
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return accelerator.type


def device_name(device: torch.device) -> str:
    """Return the driver's name of a device; for the CPU, its architecture."""
    if device.type == "cpu":
        return f"CPU ({platform.machine()})"
    if device.type == "mps":
        return "Apple GPU"
    return str(getattr(torch, device.type).get_device_name(device))


def display_name(accelerator: str) -> str:
    """Return the name that titles and run directories use: the accelerator config, or for `auto` the driver's name."""
    return device_name(torch.device(accelerator_type(), 0)) if accelerator == "auto" else accelerator


def device_count() -> int:
    """Return the number of accelerators that are visible to this process."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def require_devices(accelerator: str, count: int) -> None:
    """Raise `DeviceError` unless `count` devices of the accelerator config are available; CPU ranks always are."""
    if accelerator == "cpu":
        return
    if not torch.accelerator.is_available():
        raise DeviceError(
            f"accelerator={accelerator} was requested but PyTorch sees no accelerator: "
            "use accelerator=cpu, or run timetrial doctor."
        )
    if count > device_count():
        raise DeviceError(
            f"gpus={count} was requested but this machine has {device_count()}: use gpus={device_count()}."
        )


def select_device(accelerator: str, local_rank: int) -> torch.device:
    """Make the device of a local rank the current one and return it."""
    if accelerator == "cpu":
        return torch.device("cpu")
    # Streams beyond the hardware queues (8 by default) serialize: JPEG decoding would delay the training step.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    torch.accelerator.set_device_index(local_rank)
    return torch.device(accelerator_type(), local_rank)


def collective_backend(device: torch.device) -> str:
    """Return the process-group backend for tensors of this device."""
    if device.type not in _COLLECTIVE_BACKENDS:
        raise DeviceError(f"{device_name(device)} has no collectives in PyTorch: use gpus=1.")
    return _COLLECTIVE_BACKENDS[device.type]


def configure_collectives(*, peer_to_peer: bool) -> None:
    """Allow or forbid direct GPU-to-GPU transfers (NVLink, PCIe) in collectives; call before the process group starts.

    RCCL reads the same variables. All values are set explicitly, so that the run matches its configuration.
    """
    os.environ["NCCL_P2P_DISABLE"] = "0" if peer_to_peer else "1"
    # With registered buffers, a rank that replays a captured collective would hang if another rank runs its step
    # eagerly, which happens when their batches differ in shape.
    os.environ["NCCL_GRAPH_REGISTER"] = "0"


def require_precision(device: torch.device, precision: str) -> None:
    """Raise `DeviceError` if the device has no hardware support for `precision`."""
    if precision == "tf32" and not _compute_capability(device) >= (8, 0):
        raise DeviceError(f"{device_name(device)} does not support TF32: use precision=fp32 or precision=fp16.")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError(f"{device_name(device)} does not support BF16: use precision=fp16.")


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 in float32 matrix products and convolutions."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def enable_cudnn_benchmark() -> None:
    """Let cuDNN time its algorithms for each new shape and keep the fastest; the choice can differ between runs."""
    torch.backends.cudnn.benchmark = True


def has_mixed_addmm(device: torch.device) -> bool:
    """Return whether `torch.addmm` can add a product of 16-bit matrices to an fp32 matrix."""
    return device.type == "cuda" and torch.version.hip is None


def host_copies(values: Iterable[Any]) -> Iterator[Any]:
    """Yield copies on the host of tensors in nested containers, each once the work for the next has been submitted.

    So the device has work while the host uses a copy. Tensors are on one device and the CPU.
    """
    last: tuple[Any, torch.Event | None] | None = None
    for value in values:
        copies = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("cpu", non_blocking=True), value)
        leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
        device = next((leaf.device for leaf in leaves if leaf.device.type != "cpu"), None)
        made = None if device is None else torch.Event(device)
        if made is not None:
            made.record()
        if last is not None:
            yield _wait(*last)
        last = copies, made
    if last is not None:
        yield _wait(*last)


def _wait(copies: Any, made: torch.Event | None) -> Any:
    if made is not None:
        made.synchronize()
    return copies


class DeviceTimer:
    """Accumulate the time between start() and stop() as the device sees it.

    Both are recorded on the device's stream where it supports timed events, so that the spans between submitted work
    are idle time of the device. Elsewhere they are read from the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.uses_device_clock = device.type in ("cuda", "xpu")
        self._device = device
        self._spans: list[tuple[Any, Any]] = []
        self._started: Any = None

    def start(self) -> None:
        """Start a span at the end of the work submitted so far."""
        self._started = self._record()

    def stop(self) -> None:
        """End the span."""
        self._spans.append((self._started, self._record()))

    def pop_seconds(self) -> float:
        """Return the sum of all spans since the last call; the device must have finished its work."""
        spans, self._spans = self._spans, []
        if self.uses_device_clock:
            return sum(start.elapsed_time(end) for start, end in spans) / 1000
        return sum(end - start for start, end in spans)

    def _record(self) -> Any:
        if not self.uses_device_clock:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


def time_on_device(device: torch.device, function: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that the device takes for the work of `function`, and the seconds of its submission."""
    timer = DeviceTimer(device)
    synchronize(device)
    timer.start()
    started = time.perf_counter()
    function()
    submission_seconds = time.perf_counter() - started
    if not timer.uses_device_clock:
        synchronize(device)
    timer.stop()
    synchronize(device)
    return timer.pop_seconds(), submission_seconds


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all submitted work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def last_level_cache_bytes(device: torch.device) -> int:
    """Return the size of the cache in front of the device's memory; 64 MiB if unknown."""
    if device.type == "cpu":
        return host.largest_cache_bytes() or _DEFAULT_CACHE_BYTES
    properties = getattr(torch, device.type).get_device_properties(device) if device.type in ("cuda", "xpu") else None
    names = ("L2_cache_size", "last_level_cache_size")
    return int(next(filter(None, (getattr(properties, name, 0) for name in names)), _DEFAULT_CACHE_BYTES))


def num_multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors (CUDA), compute units (ROCm) or Xe cores (XPU) the device has; 1 for others."""
    names = {"cuda": "multi_processor_count", "xpu": "gpu_subslice_count"}
    if device.type not in names:
        return 1
    return int(getattr(getattr(torch, device.type).get_device_properties(device), names[device.type], 1))


def profiler_activities(device: torch.device) -> list[ProfilerActivity]:
    """Return what PyTorch's profiler records of a program on this device: the host, and the device if it has one."""
    kinds = {"cuda": [ProfilerActivity.CUDA], "xpu": [ProfilerActivity.XPU]}
    return [ProfilerActivity.CPU, *kinds.get(device.type, [])]


def reset_peak_memory(device: torch.device) -> None:
    """Restart the measurement of `peak_memory_bytes`."""
    if device.type in ("cuda", "xpu"):
        getattr(torch, device.type).reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int | None:
    """Return the most memory that tensors have occupied on the device; None if the allocator does not track it."""
    if device.type in ("cuda", "xpu"):
        return int(getattr(torch, device.type).max_memory_allocated(device))
    return None


def get_rng_state(device: torch.device) -> torch.Tensor | None:
    """Return the state of the device's default generator; None for the CPU, whose state is torch.get_rng_state."""
    return None if device.type == "cpu" else getattr(torch, device.type).get_rng_state(device)


def set_rng_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Restore a state of `get_rng_state`."""
    if state is not None:
        getattr(torch, device.type).set_rng_state(state, device)


def library_versions() -> dict[str, str | None]:
    """Return the versions of the vendor libraries in the PyTorch build."""
    cudnn = torch.backends.cudnn.version()
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() and torch.distributed.is_nccl_available() else None
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": str(cudnn) if cudnn else None,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def compiled_architectures() -> list[str]:
    """Return the architectures that the PyTorch build has kernels for."""
    return torch.cuda.get_arch_list() if torch.cuda.is_available() else []


def visibility_settings() -> dict[str, str]:
    """Return the environment variables by which a scheduler or user restricts the visible devices."""
    return {name: os.environ[name] for name in VISIBILITY_VARIABLES if name in os.environ}


def installed_build() -> PyTorchBuild:
    """Return the installed PyTorch build, whatever GPUs this machine has."""
    version = torch.version
    if version.hip:
        return PyTorchBuild(torch.__version__, "rocm", version.hip, tuple(torch.cuda.get_arch_list()))
    if version.cuda:
        return PyTorchBuild(torch.__version__, "cuda", version.cuda, tuple(torch.cuda.get_arch_list()))
    accelerator = torch.accelerator.current_accelerator()
    return PyTorchBuild(torch.__version__, accelerator.type if accelerator else "cpu", getattr(version, "xpu", None))


def describe_gpus() -> list[dict[str, object]]:
    """Return name, memory in bytes, compute capability and UUID of each visible GPU or MIG instance."""
    gpus: list[dict[str, object]] = []
    for index in range(device_count()):
        device = torch.device(accelerator_type(), index)
        gpu: dict[str, object] = {"name": device_name(device)}
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            capability = f"{properties.major}.{properties.minor}"
            gpu["memory_bytes"] = properties.total_memory
            gpu["capability"] = properties.gcnArchName if torch.version.hip else capability
            gpu["uuid"] = str(properties.uuid)
        gpus.append(gpu)
    return gpus


def pci_address(index: int) -> str | None:
    """Return the PCI address of a visible device, its key in vendors' tools; None if PyTorch does not expose it."""
    properties = getattr(torch, accelerator_type()).get_device_properties(index)
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain = getattr(properties, "pci_domain_id", 0)
    return f"{domain:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def compiles_well() -> bool:
    """Return whether torch.compile generates fast code for the accelerator, of which there must be one."""
    return _compute_capability(torch.device(accelerator_type(), 0)) >= (8, 0)


def _compute_capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)
