"""The devices of the TensorFlow engine: their selection, their out-of-memory errors, and copies to PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...runner.core.errors import ConfigurationError, DeviceError, OutOfMemory
from ..common.imagenet.tensorflow_import import tensorflow

tf: Any = tensorflow


def select_devices(gpus: int, precision: str, *, on_cpu: bool) -> list[str]:
    """Return the first `gpus` GPUs, the only ones that TensorFlow may then use, or the CPU; raise `DeviceError`."""
    available = [] if on_cpu else tf.config.list_physical_devices("GPU")
    if on_cpu and gpus > 1:
        raise DeviceError(f"engine=tensorflow has one replica on a CPU, not {gpus}: use gpus=1, or engine=torch.")
    if not on_cpu and gpus > len(available):
        raise DeviceError(f"TensorFlow finds {len(available)} GPUs, not {gpus}: install a build for these GPUs.")
    used = available[:gpus]
    details = [tf.config.experimental.get_device_details(gpu) for gpu in used]
    unsupported = [
        detail.get("device_name", "This GPU") for detail in details if detail.get("compute_capability", (8,)) < (8,)
    ]
    if precision == "tf32" and not used:
        unsupported = ["The CPU"]
    if unsupported and precision in ("tf32", "bf16"):
        raise DeviceError(f"{unsupported[0]} has no {precision.upper()} units: use precision=fp32 or precision=fp16.")
    try:
        tf.config.set_visible_devices(used, "GPU")  # TensorFlow allocates nearly all memory of visible GPUs
    except RuntimeError as error:
        raise ConfigurationError("TensorFlow already uses other GPUs in this process: use launcher=local.") from error
    return [f"GPU:{number}" for number in range(len(used))] or ["CPU:0"]


@contextmanager
def raise_out_of_memory() -> Iterator[None]:
    """Raise `OutOfMemory` if TensorFlow runs out of memory."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemory("The batch does not fit into memory: lower recipe.global_batch_size.") from error


def to_torch(variable: Any) -> torch.Tensor:
    """Return a copy of a variable as a PyTorch tensor on the CPU."""
    return torch.tensor(variable.numpy())
