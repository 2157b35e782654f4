"""Data sheets by the names that drivers and MLPerf's system descriptions give to GPUs."""

import pytest

from timetrial.runner.hardware.datasheets import accelerator_configs, find_accelerator, find_datasheet


@pytest.mark.parametrize(
    ("device_name", "accelerator"),
    [
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100_pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100_40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100-PCIe-80GB", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200_nvl"),
        ("h100_pcie", "h100_pcie"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("GRID A100-10C", None),
        ("NVIDIA A100-40C", None),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA GH200 480GB", None),
        ("Tesla V100S-PCIE-32GB", None),
        ("AMD Instinct MI250X", None),
        ("cpu", None),
    ],
)
def test_a_device_name_has_the_data_sheet_of_its_form(device_name, accelerator):
    assert find_accelerator(device_name) == accelerator
    assert find_datasheet(device_name) == accelerator_configs().get(accelerator)


def test_each_config_is_found_by_its_own_name():
    with_sheet = {name for name, sheet in accelerator_configs().items() if sheet.get("tflops")}
    assert {find_accelerator(name) for name in with_sheet} == with_sheet
    assert all(sheet["name"] == name for name, sheet in accelerator_configs().items())
