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


@pytest.mark.parametrize(
    ("kind", "hip", "variables", "expected"),
    [
        ("cuda", None, {}, (["0", "1"], "CUDA_VISIBLE_DEVICES")),
        ("cuda", None, {"CUDA_VISIBLE_DEVICES": "4,7"}, (["4", "7"], "CUDA_VISIBLE_DEVICES")),
        ("cuda", "7.0", {"CUDA_VISIBLE_DEVICES": "4,7"}, (["4", "7"], "CUDA_VISIBLE_DEVICES")),
        ("cuda", "7.0", {"HIP_VISIBLE_DEVICES": "4,7"}, (["4", "7"], "HIP_VISIBLE_DEVICES")),
        ("xpu", None, {"ZE_AFFINITY_MASK": "1,2"}, (["1", "2"], "ZE_AFFINITY_MASK")),
    ],
)
def test_visible_devices_are_restricted_by_the_variable_that_counts(kind, hip, variables, expected, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(devices, "accelerator_type", lambda: kind)
    monkeypatch.setattr(devices, "device_count", lambda: 2)
    assert devices.visible_devices() == expected


def test_cpu_does_not_support_tf32():
    devices.require_precision(CPU, "fp32")
    with pytest.raises(DeviceError, match="does not support TF32: use precision=fp32"):
        devices.require_precision(CPU, "tf32")
