"""The installed PyTorch build: which GPUs it has kernels for, and which build a GPU needs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# From PyTorch 2.11 on, only the CUDA 12.6 builds support Volta and older; the others start at Turing.
_OLDEST_OF_DEFAULT_BUILDS = (7, 5)
_LEGACY_BACKEND = "cu126"
_DEFAULT_BACKENDS = {13: "cu130", 12: "cu126"}  # by the newest CUDA major version that the driver supports
_BLACKWELL, _FIRST_BLACKWELL_BACKEND = (10, 0), "cu128"  # with a driver for CUDA 12
# Management tool and vendor of the GPUs that each kind of build supports.
_SENSORS = {"cuda": ("NVML", "NVIDIA"), "rocm": ("amdsmi", "AMD"), "xpu": ("xpu-smi", "Intel")}
# Commands that install a driver.
DRIVER_COMMANDS = {
    "NVIDIA": "sudo apt install nvidia-driver-580",
    "AMD": "sudo apt install amdgpu-dkms",
    "Intel": "sudo apt install intel-opencl-icd libze-intel-gpu1",
}
_JOIN_GROUPS = "sudo usermod -aG render,video $USER"
# Commands that give a process access to the device files.
DEVICE_FILE_COMMANDS = {
    "NVIDIA": "sudo modprobe nvidia-uvm; sudo systemctl restart nvidia-fabricmanager",
    "AMD": _JOIN_GROUPS,
    "Intel": _JOIN_GROUPS,
}


@dataclass(frozen=True)
class PyTorchBuild:
    """A PyTorch build: kind (cuda, rocm, xpu, mps, cpu), runtime version and compiled architectures."""

    version: str
    kind: str
    runtime: str | None = None
    architectures: tuple[str, ...] = ()

    @property
    def sensors(self) -> tuple[str, str]:
        """Management tool and vendor of the GPUs that this build supports; empty strings for a CPU build."""
        return _SENSORS.get(self.kind, ("", ""))

    def has_kernels_for(self, capability: str | None) -> bool:
        """Return whether the build runs on GPUs of this capability ("7.0", "gfx90a"); True if that is unknown."""
        if not capability or not self.architectures:
            return True
        if capability.startswith("gfx"):
            return capability.split(":")[0] in {name.split(":")[0] for name in self.architectures}
        device = _parse_version(capability)
        return any(_runs_on(*target, device) for target in _parse_architectures(self.architectures))

    def is_supported_by_driver(self, driver_runtime: str | None) -> bool:
        """Return whether a driver for runtimes up to `driver_runtime` runs the build, by CUDA's major version."""
        if self.kind != "cuda" or not self.runtime or not driver_runtime:
            return True
        return _parse_version(driver_runtime)[0] >= _parse_version(self.runtime)[0]


def install_command(capability: str | None, driver_runtime: str | None) -> str:
    """Return the command that installs a build for a GPU, or a driver if the present one supports no build.

    uv knows the index of each build.
    """
    newest = _parse_version(driver_runtime)[0] if driver_runtime else max(_DEFAULT_BACKENDS)
    if newest < min(_DEFAULT_BACKENDS):
        return DRIVER_COMMANDS["NVIDIA"]
    if capability is None or capability.startswith("gfx"):
        backend = "auto"
    elif _parse_version(capability) < _OLDEST_OF_DEFAULT_BUILDS:
        backend = _LEGACY_BACKEND
    else:
        backend = _DEFAULT_BACKENDS[min(newest, max(_DEFAULT_BACKENDS))]
        if _parse_version(capability) >= _BLACKWELL and backend == _LEGACY_BACKEND:
            backend = _FIRST_BLACKWELL_BACKEND
    return f"pip install uv && uv pip install --reinstall --torch-backend={backend} torch torchvision"


def _runs_on(kind: str, target: tuple[int, int], suffix: str, device: tuple[int, int]) -> bool:
    if suffix:  # sm_90a: architecture-specific code runs on that architecture only
        return target == device
    if kind == "sm":  # binary code runs on later minor versions
        return target[0] == device[0] and target[1] <= device[1]
    return target <= device  # PTX, which the driver compiles for any later architecture


def _parse_version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _parse_architectures(architectures: Iterable[str]) -> Iterable[tuple[str, tuple[int, int], str]]:
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if match:
            yield match[1], (int(match[2]), int(match[3])), match[4]
