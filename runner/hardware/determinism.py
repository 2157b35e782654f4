"""Training of which every bit can be repeated."""

import os

import torch

from . import devices


def require_determinism() -> None:
    """Let PyTorch choose deterministic algorithms in this process, and the same ones on equal devices.

    Call it before anything runs on the device. Operations without such an algorithm raise RuntimeError.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it once
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    fix_convolution_plans()


def fix_convolution_plans() -> None:
    """Let cuDNN take its first choice: what a search finds the fastest can differ between equal devices."""
    devices.search_convolution_plans(0)
