"""Exceptions of PyTorch become sentences with a remedy."""

import pytest
import torch

from timetrial.runner.core.errors import Exit
from timetrial.runner.hardware.error_translation import to_run_error

# As PyTorch words it.
FULL = (
    "CUDA out of memory. Tried to allocate 20 MiB. GPU 0 has a total capacity of 79.15 GiB of which {free} is free. "
    "Process 7 has {others} GiB memory in use. Including non-PyTorch memory, this process has {own} GiB memory in use. "
    "Of the allocated memory 312.00 MiB is allocated by PyTorch, and 1.50 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("free", "others", "own", "remedy"),
    [
        ("0 bytes", "78.00", "1.10", "Other processes hold 78 of the GPU's 79 GiB of memory: end them"),
        ("0.10 GiB", "2.00", "77.05", "halve tuning.micro_batch_size"),
    ],
)
def test_memory_that_others_hold_is_told_from_a_batch_that_is_too_large(free, others, own, remedy):
    error = to_run_error(torch.OutOfMemoryError(FULL.format(free=free, others=others, own=own)))
    assert error.exit_code == Exit.OUT_OF_MEMORY
    assert remedy in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nSearch for `cudaErrorDevicesUnavailable'",
        "CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be",
    ],
)
def test_gpu_that_another_process_has_for_itself(text):
    error = to_run_error(RuntimeError(text))
    assert error.exit_code == Exit.DEVICE
    assert str(error).startswith("Another process has the GPU for itself, or its compute mode forbids processes")


def test_unknown_errors_stay_unknown():
    assert to_run_error(RuntimeError("size mismatch")) is None
