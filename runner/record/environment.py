"""Describe the machine and the software of a run."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ..hardware import device_description, devices, host
from ..hardware.sensors import open_sensors

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "hydra-core",
    "mlperf-logging",
    "triton",
    "pandas",
    "timm",
    "hotcoco",
    "pycocotools",
    "sacrebleu",
    "pillow",
    "tensorflow",
    "tensorflow-cpu",
    "nvidia-dali-cuda130",
)
_MAX_DIFF_CHARS = 100_000  # of a longer diff only the hash is kept


def describe(**paths: Path) -> dict[str, Any]:
    """Return the facts of machine, CPU, memory, storage, GPUs, vendor libraries, packages and timetrial's revision.

    Storage is described for each of the named `paths`; GPUs with what their vendor's tool reports: driver, power cap,
    clocks, persistence mode, PCIe and links.
    """
    return {
        "hostname": platform.node(),
        "system": platform.platform(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpu": {
            "model": _cpu_model(),
            "logical_cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "memory_bytes": _memory_bytes(),
        **host.describe(),
        "storage": {name: host.describe_storage(path) for name, path in paths.items()},
        **_describe_gpus(),
        "visible_devices": device_description.visibility_settings(),
        "libraries": device_description.library_versions(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "compiled_architectures": device_description.compiled_architectures(),
        "timetrial": {"version": __version__, **_revision()},
    }


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which of revision, torch and gpus, by name, differ between two descriptions."""

    def describe_software(facts: Mapping[str, Any]) -> dict[str, Any]:
        timetrial, packages, gpus = (facts.get(key) or {} for key in ("timetrial", "packages", "gpus"))
        return {
            "revision": [timetrial.get(key) for key in ("version", "revision", "changes_sha256")],
            "torch": packages.get("torch"),
            "gpus": [gpu.get("name") for gpu in gpus],
        }

    old, new = describe_software(before), describe_software(after)
    return [name for name in old if old[name] != new[name]]


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _describe_gpus() -> dict[str, Any]:
    """Return the visible GPUs and the links between them."""
    gpus, sensors = device_description.describe_gpus(), open_sensors(devices.device_count())
    if sensors is None:
        return {"gpus": gpus, "gpu_links": {}}
    try:
        facts = [sensors.describe(index) for index in range(len(sensors))]
        return {"gpus": [gpu | more for gpu, more in zip(gpus, facts, strict=True)], "gpu_links": sensors.links()}
    finally:
        sensors.close()


def _revision() -> dict[str, Any]:
    """Return git revision, diff and hash of the uncommitted changes of a checkout; empty for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        revision, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
        diff = git("diff", "HEAD") if changes else ""
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
        return {"revision": None, "changed": None, "changes_sha256": None, "diff": None}
    # Untracked files count by name, tracked ones by content.
    digest = hashlib.sha256((changes + diff).encode()).hexdigest() if changes else None
    diff_or_none = diff if len(diff) <= _MAX_DIFF_CHARS else None
    return {"revision": revision, "changed": bool(changes), "changes_sha256": digest, "diff": diff_or_none}
