"""Fakes of the vendors' libraries with documented return values; the constants of NVML are those of pynvml."""

from enum import IntEnum
from types import SimpleNamespace

import pytest

DEFAULT_ANSWERS = {
    "Name": "Tesla V100-PCIE-32GB",
    "TotalEnergyConsumption": 12_345_678,  # mJ
    "UtilizationRates": SimpleNamespace(gpu=98, memory=40),
    "MemoryInfo": SimpleNamespace(used=3 * 2**30),
    "ComputeRunningProcesses": [],
    "CurrentClocksEventReasons": 0,
    "ClockInfo": {1: 1380, 2: 877},  # SM and memory
    "MaxClockInfo": {1: 1380, 2: 877},
    "Temperature": 61,
    "PowerUsage": 231_000,  # mW
    "EnforcedPowerLimit": 200_000,
    "PowerManagementDefaultLimit": 250_000,
    "PcieThroughput": {0: 1_000_000, 1: 2_000_000},  # KiB/s sent, received
    "TotalEccErrors": {0: 3, 1: 0},
    "EccMode": [1, 1],
    "PersistenceMode": 0,
    "CudaComputeCapability": (7, 0),
    "PciInfo": SimpleNamespace(busId="00000000:3B:00.0"),
    "CurrPcieLinkGeneration": 3,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkGeneration": 3,
    "MaxPcieLinkWidth": 16,
    "GpuMaxPcieLinkGeneration": 4,
    "PcieReplayCounter": 7,
    "VbiosVersion": "88.00",
    "P2PStatus": 1,
    "NvLinkState": 0,
    "TopologyCommonAncestor": 30,
}


@pytest.fixture
def nvml():
    """nvml(**answers) -> a fake pynvml for two GPUs; an answer that is an exception is raised."""
    real = pytest.importorskip("pynvml")

    def make(**answers):
        library = SimpleNamespace(**{name: getattr(real, name) for name in dir(real) if name.startswith("NVML")})
        for name in dir(real):
            if name.startswith("nvmlClocksEventReason"):
                setattr(library, name, getattr(real, name))
        library.nvmlInit = library.nvmlShutdown = lambda: None
        library.nvmlSystemGetDriverVersion = lambda: "535.104"
        library.nvmlSystemGetCudaDriverVersion = lambda: 12020
        library.nvmlDeviceGetCount = lambda: 2
        library.nvmlDeviceGetHandleByIndex = lambda index: f"gpu {index}"
        library.nvmlDeviceGetHandleByPciBusId = lambda address: f"gpu at {address.decode()}"
        for name in (*DEFAULT_ANSWERS, "FanSpeed", "CurrentClocksThrottleReasons"):
            answer = (DEFAULT_ANSWERS | answers).get(name, real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED))
            setattr(library, f"nvmlDeviceGet{name}", _fake_function(answer))
        return library

    return make


def _fake_function(answer):
    def function(gpu, *arguments):
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer()
        return answer[arguments[0]] if isinstance(answer, dict) else answer

    return function


class AmdSmiException(Exception):
    """The base class of the library's errors."""


class Link(IntEnum):
    AMDSMI_LINK_TYPE_PCIE = 1
    AMDSMI_LINK_TYPE_XGMI = 2


@pytest.fixture
def smi():
    """smi(**answers) -> a fake amdsmi for two MI250X."""

    def make(**answers):
        def unsupported(*arguments):
            raise AmdSmiException

        results = {
            "energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1},
            "power_info": {"current_socket_power": "N/A", "average_socket_power": 300, "power_limit": 560_000_000},
            "clock_info": {"clk": 1700, "max_clk": 1700},
            "gpu_activity": {"gfx_activity": 99},
            "gpu_vram_usage": {"vram_total": 65520, "vram_used": 1234},
            "temp_metric": 55,
            "power_cap_info": {"power_cap": 500_000_000, "default_power_cap": 560_000_000},
            "gpu_total_ecc_count": {"correctable_count": 0, "uncorrectable_count": 2},
            "violation_status": {"active_ppt_pwr": False, "active_socket_thrm": True, "active_vr_thrm": "N/A"},
            "gpu_process_list": [],
            "gpu_asic_info": {"market_name": "AMD Instinct MI250X", "target_graphics_version": "gfx90a"},
            "gpu_driver_info": {"driver_version": "6.12"},
            "pcie_info": {
                "pcie_metric": {"pcie_speed": 16000, "pcie_width": 16, "pcie_replay_count": 4},
                "pcie_static": {"max_pcie_speed": 32000, "max_pcie_width": 16},
            },
            "gpu_device_bdf": None,
        } | answers
        library = SimpleNamespace(
            AmdSmiException=AmdSmiException,
            AmdSmiInitFlags=SimpleNamespace(INIT_AMD_GPUS=2),
            AmdSmiClkType=SimpleNamespace(GFX=1, MEM=4),
            AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
            AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
            AmdSmiLinkType=Link,
            amdsmi_init=lambda flags: None,
            amdsmi_shut_down=lambda: None,
            amdsmi_get_processor_handles=lambda: ["gpu 0", "gpu 1"],
            amdsmi_get_gpu_fan_speed=unsupported,
            amdsmi_topo_get_link_type=lambda *pair: {"hops": 1, "type": 2},
            amdsmi_topo_get_numa_node_number=lambda gpu: 1,
        )
        for name, answer in results.items():
            setattr(
                library,
                f"amdsmi_get_{name}",
                lambda *arguments, answer=answer: answer() if callable(answer) else answer,
            )
        library.amdsmi_get_gpu_device_bdf = {"gpu 0": "0000:C1:00.0", "gpu 1": "0000:C6:00.0"}.get
        return library

    return make
