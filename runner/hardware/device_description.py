"""Describe the visible devices and the installed PyTorch build, as records and checks of the machine need them."""

import hashlib
import os

import torch

from . import devices, host
from .pytorch_build import PyTorchBuild

# Environment variables that restrict which devices a process sees.
VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_DEFAULT_CACHE_BYTES = 2**26


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
    """Return name, memory in bytes, compute capability and `id` of each visible GPU or MIG instance.

    The id is a hash of the UUID: it tells whether runs shared a GPU, and identifies none to a reader of the record.
    """
    gpus: list[dict[str, object]] = []
    for index in range(devices.device_count()):
        device = torch.device(devices.accelerator_type(), index)
        gpu: dict[str, object] = {"name": devices.device_name(device)}
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            capability = f"{properties.major}.{properties.minor}"
            gpu["memory_bytes"] = properties.total_memory
            gpu["capability"] = properties.gcnArchName if torch.version.hip else capability
            gpu["id"] = hashlib.sha256(str(properties.uuid).encode()).hexdigest()[:16]
        gpus.append(gpu)
    return gpus


def pci_address(index: int) -> str | None:
    """Return the PCI address of a visible device, its key in vendors' tools; None if PyTorch does not expose it."""
    properties = getattr(torch, devices.accelerator_type()).get_device_properties(index)
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain = getattr(properties, "pci_domain_id", 0)
    return f"{domain:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def last_level_cache_bytes(device: torch.device) -> int:
    """Return the size of the cache in front of the device's memory; 64 MiB if unknown."""
    if device.type == "cpu":
        return host.largest_cache_bytes() or _DEFAULT_CACHE_BYTES
    properties = getattr(torch, device.type).get_device_properties(device) if device.type in ("cuda", "xpu") else None
    names = ("L2_cache_size", "last_level_cache_size")
    return int(next(filter(None, (getattr(properties, name, 0) for name in names)), _DEFAULT_CACHE_BYTES))
