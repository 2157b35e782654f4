"""Open the management library of each vendor: NVML, amdsmi or xpu-smi."""

import importlib
import subprocess
from collections.abc import Collection
from typing import Any

import torch

from . import device_description, devices
from .amd import AmdSmiSensors
from .nvml import NvmlSensors
from .readings import GpuSensors
from .xpu import XpuSmiSensors

# What to install for `open_sensors`.
INSTALL_HINT = "pip install 'timetrial[nvidia]', ROCm's amdsmi, or Intel's xpu-smi"
_TOOLS = ("nvml", "amdsmi", "xpu-smi")


def open_sensors(count: int, ranks: Collection[int] = ()) -> GpuSensors | None:
    """Return the sensors of the first `count` GPUs that are visible to this process.

    The processes `ranks` are the ranks of this run on this node, if it has several.
    None for the CPU, for Apple GPUs (whose sensors need root), and where tool or driver is missing.
    """
    if not count or devices.accelerator_type() not in ("cuda", "xpu"):
        return None
    tool = "xpu-smi" if devices.accelerator_type() == "xpu" else "amdsmi" if torch.version.hip else "nvml"
    addresses = [device_description.pci_address(index) for index in range(count)]
    if None not in addresses:
        return _open(tool, addresses, ranks)
    # Without PCI addresses, rely on the order of all GPUs, unless some are hidden.
    sensors = _open(tool, None, ranks)
    if sensors is not None and len(sensors) != count:
        sensors.close()
        return None
    return sensors


def open_all_sensors() -> list[GpuSensors]:
    """Return the sensors of every GPU of this machine, whether the installed PyTorch can use it or not."""
    return [sensors for sensors in (_open(tool, None) for tool in _TOOLS) if sensors is not None]


def _open(tool: str, addresses: list[Any] | None, ranks: Collection[int] = ()) -> GpuSensors | None:
    """Open a vendor's tool; None if it is not installed, has no driver, or does not know the addresses."""
    try:
        match tool:
            case "nvml":
                return NvmlSensors(importlib.import_module("pynvml"), addresses, ranks)
            case "amdsmi":
                return AmdSmiSensors(importlib.import_module("amdsmi"), addresses, ranks)
        return XpuSmiSensors(addresses)
    except (ImportError, OSError, LookupError, ValueError, subprocess.SubprocessError):
        return None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pynvml", "amdsmi"):  # their errors have no common base class
            raise
        return None
