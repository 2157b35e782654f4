"""Translate exceptions of PyTorch and its libraries into the errors of a run."""

import re

import torch

from ..core.atomic_files import is_disk_full, write_failure
from ..core.errors import DeviceError, HardwareError, LostRank, OutOfMemory, RunError

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def to_run_error(error: BaseException) -> RunError | None:
    """Return the run error behind a framework's exception, or None if it is unknown."""
    text = str(error)
    if isinstance(error, RunError):
        return error
    if is_disk_full(error):
        return write_failure(error.filename or "a file of the run", error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or re.search(
        r"DefaultCPUAllocator|(CUDA|HIP) error: out of memory", text
    ):
        return OutOfMemory(
            _others_hold_memory(text)
            or "The micro-batch does not fit into memory: "
            "halve tuning.micro_batch_size (the global batch stays the same)."
        )
    if re.search(r"CUDA-capable device\S* (is/)?are busy or unavailable", text):
        return DeviceError(
            "Another process has the GPU for itself, or its compute mode forbids processes: see nvidia-smi, or choose "
            "another GPU with CUDA_VISIBLE_DEVICES."
        )
    if re.search(r"DataLoader worker .*(killed by signal|exited unexpectedly)", text):
        return LostRank(
            f"A process that loads the data died ({text.strip().rstrip('.')}): if the host's memory or its shared "
            "memory (/dev/shm) was full, lower recipe.data.workers."
        )
    if isinstance(error, torch.distributed.DistError) or re.search(
        r"gloo|nccl|connection (closed|reset)|timed out waiting", text, re.I
    ):
        return LostRank(
            "A rank died or stopped responding, so the others were ended: see stderr_*.txt in the run directory."
        )
    if found := re.search(r"(\S+) does not have a deterministic implementation", text):
        return DeviceError(f"{found[1]} has no deterministic algorithm here: leave engine.deterministic=true out.")
    if "no kernel image is available" in text:
        return DeviceError(
            "The installed PyTorch build has no kernels for this GPU: "
            "run timetrial doctor for the command that installs one."
        )
    if _is_device_error(error) and re.search(
        r"uncorrectable|unspecified launch failure|hardware|NVLink|fallen off", text, re.I
    ):
        return HardwareError(f"The device reported a fault ({text.splitlines()[0]}): exclude this node and run again.")
    return None


def _others_hold_memory(text: str) -> str:
    """Return the sentence for a GPU of which other processes hold more than half, by PyTorch's message; else ""."""
    size = r"([\d.]+ (?:bytes|[KMG]iB))"
    found = re.search(rf"total capacity of {size} of which {size} is free.* this process has {size} memory", text, re.S)
    if not found:
        return ""
    total, free, own = (float(number) * _UNITS[unit] for number, unit in map(str.split, found.groups()))
    others = total - free - own
    if others < total / 2:
        return ""
    gib = _UNITS["GiB"]
    return (
        f"Other processes hold {others / gib:.0f} of the GPU's {total / gib:.0f} GiB of memory: "
        "end them, or choose another GPU with CUDA_VISIBLE_DEVICES."
    )


def _is_device_error(error: BaseException) -> bool:
    return type(error).__name__ in ("AcceleratorError", "RuntimeError")
