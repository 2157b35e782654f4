"""Whether Triton kernels can be used."""

import torch
from torch import Tensor

try:
    import triton
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return triton is not None


def triton_available(tensor: Tensor) -> bool:
    """Return whether Triton kernels can run on the tensor's device and support its dtype."""
    return has_triton() and tensor.device.type != "cpu" and tensor.dtype != torch.float64
