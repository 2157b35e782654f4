"""What the run ran on: system.json."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from timetrial import __version__
from timetrial.runner import accelerator

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "hydra-core",
    "mlperf-logging",
    "triton",
    "pandas",
    "pillow",
    "tensorflow",
    "tensorflow-cpu",
    "nvidia-dali-cuda130",
)


def describe() -> dict[str, Any]:
    """Machine, processor, memory, cards, driver-side libraries, packages and the revision of timetrial."""
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
        "cards": accelerator.cards(),
        "libraries": accelerator.versions(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "compiled_architectures": accelerator.compiled_architectures(),
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


def _revision() -> dict[str, Any]:
    """Git revision of the checkout and whether it was changed; empty for an installed wheel."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return {}

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        ).stdout.strip()

    return {"revision": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
