"""Training of which every bit can be repeated."""

import os

import torch


def require_determinism() -> None:
    """Let PyTorch choose deterministic algorithms in this process.

    Call it before anything runs on the device. Operations without such an algorithm raise RuntimeError. Convolutions
    need fixed plans too: what a search finds the fastest can differ between equal devices.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it once
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing here reads it
    torch.backends.cudnn.deterministic = True
