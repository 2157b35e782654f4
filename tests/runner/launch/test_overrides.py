"""The accelerator that a command without one gets."""

import pytest

from timetrial.runner.hardware import devices
from timetrial.runner.launch.overrides import with_accelerator


@pytest.mark.parametrize(
    ("name", "capability", "hip", "added"),
    [
        ("Tesla T4", (7, 5), None, ["accelerator=t4"]),
        ("NVIDIA H100 80GB HBM3", (9, 0), None, ["accelerator=h100"]),
        ("NVIDIA L40S", (8, 9), None, ["accelerator=auto", "accelerator.compiles=true"]),
        ("NVIDIA GeForce RTX 2080", (7, 5), None, ["accelerator=auto"]),
        ("AMD Instinct MI300X", (9, 4), "6.3", ["accelerator=auto"]),
    ],
)
def test_a_gpu_compiles_by_its_capability(monkeypatch, name, capability, hip, added):
    monkeypatch.setattr(devices.torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(devices, "accelerator_type", lambda: "cuda")
    monkeypatch.setattr(devices, "device_name", lambda device: name)
    monkeypatch.setattr(devices.torch.version, "hip", hip)
    monkeypatch.setattr(devices.torch.cuda, "get_device_capability", lambda device: capability)
    assert with_accelerator(["seed=2"]) == [*added, "seed=2"]
    assert with_accelerator(["accelerator=cpu"]) == ["accelerator=cpu"]
