"""Does the installed PyTorch hold code for this card, and if not, which one does?"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# From PyTorch 2.11 on the builds for CUDA 12.6 alone hold code for Volta and older; the others begin with Turing.
_OLDEST_OF_USUAL_BUILDS = (7, 5)
_OLD_CARDS = "cu126"
_USUAL = {13: "cu130", 12: "cu126"}  # by the newest CUDA that the driver runs
_NEW_CARDS, _FIRST_FOR_NEW_CARDS = (10, 0), "cu128"  # Blackwell, on a driver of CUDA 12
# Of what each kind of build needs: the tool that sees the cards, and their vendor.
_SENSORS = {"cuda": ("NVML", "NVIDIA"), "rocm": ("amdsmi", "AMD"), "xpu": ("xpu-smi", "Intel")}
DRIVERS = {
    "NVIDIA": "sudo apt install nvidia-driver-580",
    "AMD": "sudo apt install amdgpu-dkms",
    "Intel": "sudo apt install intel-opencl-icd libze-intel-gpu1",
}
_OF_GROUPS = "sudo usermod -aG render,video $USER"
# What lets a process open its card's device files.
DEVICE_FILES = {
    "NVIDIA": "sudo modprobe nvidia-uvm; sudo systemctl restart nvidia-fabricmanager",
    "AMD": _OF_GROUPS,
    "Intel": _OF_GROUPS,
}


@dataclass(frozen=True)
class Wheel:
    """The installed PyTorch: kind (cuda, rocm, xpu, mps, cpu), the runtime it was built with, and for which cards."""

    version: str
    kind: str
    runtime: str | None = None
    architectures: tuple[str, ...] = ()

    @property
    def sensors(self) -> tuple[str, str]:
        """The tool that sees the cards that this was built for, and their vendor; empty where it is for none."""
        return _SENSORS.get(self.kind, ("", ""))


def holds_code(wheel: Wheel, capability: str | None) -> bool:
    """Whether the wheel can run on a card of this capability ("7.0", "gfx90a"); True where nobody can tell."""
    if not capability or not wheel.architectures:
        return True
    if capability.startswith("gfx"):
        return capability.split(":")[0] in {name.split(":")[0] for name in wheel.architectures}
    major, minor = _version(capability)
    for kind, built_major, built_minor, special in _built(wheel.architectures):
        if special:  # made for one card alone
            fits = (built_major, built_minor) == (major, minor)
        elif kind == "sm":
            fits = built_major == major and built_minor <= minor
        else:  # an intermediate form, which the driver compiles for any later card
            fits = (built_major, built_minor) <= (major, minor)
        if fits:
            return True
    return False


def driver_runs(wheel: Wheel, driver_runtime: str | None) -> bool:
    """Whether a driver that runs programs up to `driver_runtime` runs the wheel: CUDA's minor versions are alike."""
    if wheel.kind != "cuda" or not wheel.runtime or not driver_runtime:
        return True
    return _version(driver_runtime)[0] >= _version(wheel.runtime)[0]


def remedy(capability: str | None, driver_runtime: str | None) -> str:
    """The command that installs a PyTorch for a card, or first a driver that runs one; uv knows where builds lie."""
    newest = _version(driver_runtime)[0] if driver_runtime else max(_USUAL)
    if newest < min(_USUAL):
        return DRIVERS["NVIDIA"]
    if capability is None or capability.startswith("gfx"):
        backend = "auto"
    elif _version(capability) < _OLDEST_OF_USUAL_BUILDS:
        backend = _OLD_CARDS
    else:
        backend = _USUAL[min(newest, max(_USUAL))]
        if _version(capability) >= _NEW_CARDS and backend == _OLD_CARDS:
            backend = _FIRST_FOR_NEW_CARDS
    return f"pip install uv && uv pip install --reinstall --torch-backend={backend} torch torchvision"


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _built(architectures: Iterable[str]) -> Iterable[tuple[str, int, int, bool]]:
    for name in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if found:
            yield found[1], int(found[2]), int(found[3]), bool(found[4])
