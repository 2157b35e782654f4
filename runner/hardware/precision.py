"""Number formats of a run: fp32, tf32, bf16, fp16."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from . import devices

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """How the engine computes on `device`: autocast to a half format, and loss scaling where fp16 needs it."""

    name: str
    device: torch.device

    def apply(self) -> None:
        """Sets what is global to the process; raises `DeviceError` where the device lacks the format."""
        devices.require_precision(self.device, self.name)
        devices.allow_tf32(self.name == "tf32")
        devices.search_convolutions()

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the forward pass runs."""
        if self.name not in _AUTOCAST:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_AUTOCAST[self.name])

    def scaler(self) -> torch.amp.GradScaler:
        """Dynamic loss scaling for fp16, a pass-through otherwise."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")
