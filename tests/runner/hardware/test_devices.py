"""The device layer on the CPU."""

import pytest
import torch

from timetrial.runner.core.errors import DeviceError
from timetrial.runner.hardware import devices

CPU = torch.device("cpu")


def test_cpu_ranks_are_limited_by_the_cores():
    devices.require_devices("cpu", 4)
    with pytest.raises(DeviceError, match=r"gpus=8000 would start 8000 processes on \d+ cores: use gpus="):
        devices.require_devices("cpu", 8000)


def test_cpu_does_not_support_tf32():
    devices.require_precision(CPU, "fp32")
    with pytest.raises(DeviceError, match="does not support TF32: use precision=fp32"):
        devices.require_precision(CPU, "tf32")
