"""What the run ran on: system.json."""

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ..hardware import devices, host

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "hydra-core",
    "mlperf-logging",
    "triton",
    "pandas",
    "timm",
    "pycocotools",
    "sacrebleu",
    "pillow",
    "tensorflow",
    "tensorflow-cpu",
    "nvidia-dali-cuda130",
)
_LONGEST_DIFF = 100_000  # characters; beyond, its hash must do


def describe(**places: Path) -> dict[str, Any]:
    """Machine, processor, memory, cards, driver-side libraries, packages and the revision of timetrial.

    Of each of the named `places` the kind of storage is told, of cards what their vendor's tool adds: driver, power
    cap, clocks, persistence, bus and links.
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
        "storage": {name: host.storage(place) for name, place in places.items()},
        **_cards(),
        "selection": devices.selection(),
        "libraries": devices.versions(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "compiled_architectures": devices.compiled_architectures(),
        "timetrial": {"version": __version__, **_revision()},
    }


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


def _cards() -> dict[str, Any]:
    """The visible cards, and how they reach one another."""
    cards, sensors = devices.cards(), devices.sensors(devices.available())
    if sensors is None:
        return {"cards": cards, "links": {}}
    try:
        told = [sensors.describe(index) for index in range(len(sensors))]
        return {"cards": [card | more for card, more in zip(cards, told, strict=True)], "links": sensors.links()}
    finally:
        sensors.close()


def _revision() -> dict[str, Any]:
    """Git revision of the checkout, and where it was changed how and a hash of that; empty for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        revision, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
        diff = git("diff", "HEAD") if changes else ""
    except (OSError, subprocess.CalledProcessError):  # no git here, or none that reads what another user checked out
        return {"revision": None, "changed": None, "difference": None, "diff": None}
    # New files count by their names, what git follows by its text.
    difference = hashlib.sha256((changes + diff).encode()).hexdigest() if changes else None
    told = diff if len(diff) <= _LONGEST_DIFF else None
    return {"revision": revision, "changed": bool(changes), "difference": difference, "diff": told}
