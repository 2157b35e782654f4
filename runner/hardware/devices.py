"""Select devices of PyTorch's backends (CUDA, ROCm, XPU, MPS, CPU), and set and ask what they support."""

import os
import platform

import torch
from torch.profiler import ProfilerActivity

from ..core.errors import DeviceError
from .datasheets import find_accelerator

_MAX_RANKS_PER_CORE = 16  # on the CPU: enough for any test of ranks, and few enough to find a mistyped number
_COLLECTIVE_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def detect_accelerator() -> str:
    """Return the accelerator config of this machine: a known GPU, `cpu` without a GPU, else `auto`."""
    if not torch.accelerator.is_available():
        return "cpu"
    return find_accelerator(device_name(torch.device(accelerator_type(), 0))) or "auto"


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


def visible_devices() -> tuple[list[str], str]:
    """Return the names of the accelerators that this process sees, and the environment variable that restricts them."""
    variable = "ZE_AFFINITY_MASK" if accelerator_type() == "xpu" else "CUDA_VISIBLE_DEVICES"
    if torch.version.hip and os.environ.get("HIP_VISIBLE_DEVICES"):  # HIP reads the other one only without it
        variable = "HIP_VISIBLE_DEVICES"
    named = os.environ.get(variable, "")
    return named.split(",") if named else [str(index) for index in range(device_count())], variable


def require_devices(accelerator: str, count: int) -> None:
    """Raise `DeviceError` unless this machine has `count` devices of the accelerator config, or cores for CPU ranks."""
    if accelerator == "cpu":
        cores = os.cpu_count() or 1
        if count > _MAX_RANKS_PER_CORE * cores:
            raise DeviceError(f"gpus={count} would start {count} processes on {cores} cores: use gpus={cores}.")
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


def can_forbid_peer_to_peer(device_type: str) -> bool:
    """Return whether the collectives of a device type can do without direct transfers."""
    return device_type != "xpu"


def configure_collectives(device: torch.device, *, peer_to_peer: bool) -> None:
    """Allow or forbid direct GPU-to-GPU transfers (NVLink, PCIe) in collectives; call before the process group starts.

    RCCL reads the same variables. All values are set explicitly, so that the run matches its configuration. Raises
    `DeviceError` if the device's library has no such switch.
    """
    if not peer_to_peer and not can_forbid_peer_to_peer(device.type):
        raise DeviceError(
            f"{device_name(device)} cannot turn off peer-to-peer transfers: leave peer_to_peer out of the command."
        )
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


def search_convolution_plans(enabled: bool) -> None:
    """Let cuDNN time its plans for each new shape and keep the fastest; otherwise, it takes its first choice.

    The fastest can differ between runs, whose values then differ too. MIOpen searches in its own way.
    """
    torch.backends.cudnn.benchmark = enabled


def is_nvidia_gpu(device: torch.device) -> bool:
    """Return whether the device is a GPU of NVIDIA; PyTorch calls those of AMD "cuda" too."""
    return device.type == "cuda" and torch.version.hip is None


def has_mixed_addmm(device: torch.device) -> bool:
    """Return whether `torch.addmm` can add a product of 16-bit matrices to an fp32 matrix."""
    return is_nvidia_gpu(device)


def has_float64(device: torch.device) -> bool:
    """Return whether the device computes in float64; Apple's GPUs and some of Intel's do not."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all submitted work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


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


def release_cached_memory() -> None:
    """Give memory that no tensor occupies back to the device."""
    for backend in (torch.cuda, torch.xpu):
        if backend.is_initialized():
            backend.empty_cache()


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


def compiles_well() -> bool:
    """Return whether torch.compile generates fast code for the accelerator, of which there must be one."""
    return _compute_capability(torch.device(accelerator_type(), 0)) >= (8, 0)


def _compute_capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if is_nvidia_gpu(device) else (0, 0)
