"""Translate exceptions of PyTorch and its libraries into the errors of a run."""

import re

import torch

from ..core.atomic_files import is_disk_full, write_failure
from ..core.errors import DeviceError, HardwareError, LostRank, OutOfMemory, RunError


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
            "The micro-batch does not fit into memory: halve tuning.micro_batch_size (the global batch stays the same)."
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


def _is_device_error(error: BaseException) -> bool:
    return type(error).__name__ in ("AcceleratorError", "RuntimeError")
