"""Triton, where it is installed: kernel modules import `triton` and `tl` from here and define their kernels freely."""

from types import SimpleNamespace

import torch
from torch import Tensor

from ....runner.core import execution_paths
from ....runner.hardware import custom_kernels

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton: kernels are defined, but nothing calls them
    triton = SimpleNamespace(jit=lambda kernel=None, **options: kernel or (lambda kernel: kernel))
    tl = SimpleNamespace(constexpr=lambda value: value)

__all__ = ["has_triton", "tl", "triton", "triton_available"]


def has_triton() -> bool:
    """Return whether Triton is installed and custom kernels are not switched off."""
    return custom_kernels.are_enabled() and not isinstance(triton, SimpleNamespace)


def triton_available(tensor: Tensor) -> bool:
    """Return whether Triton kernels can run on the tensor's device and support its dtype."""
    is_available = has_triton() and tensor.device.type != "cpu" and tensor.dtype != torch.float64
    if torch.compiler.is_compiling():  # a compiler would trace the record
        return is_available
    if is_available:
        execution_paths.take("kernels", "Triton")
    else:
        execution_paths.fall_back("kernels", "PyTorch")
    return is_available
