"""What autocast computes in."""

import torch
from torch import Tensor


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: that of autocast where it is enabled, else that of x."""
    device_type = x.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x.dtype
