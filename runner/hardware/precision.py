"""Number formats of a run: fp32, tf32, bf16, fp16."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from . import devices

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The number format in which the engine computes on `device`: autocast for bf16 and fp16, loss scaling for fp16."""

    name: str
    device: torch.device

    def apply(self) -> None:
        """Set the process-wide switches; raise `DeviceError` if the device does not support the format."""
        devices.require_precision(self.device, self.name)
        devices.allow_tf32(self.name == "tf32")

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        if self.name not in _AUTOCAST_DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_AUTOCAST_DTYPES[self.name])

    def grad_scaler(self) -> torch.amp.GradScaler:
        """Return a dynamic loss scaler for fp16, a pass-through otherwise."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")
