"""Vendors' libraries in the shapes that their documentation gives; the constants of NVML are the package's own."""

from types import SimpleNamespace

import pytest

WORKING = {
    "Name": "Tesla V100-PCIE-32GB",
    "TotalEnergyConsumption": 12_345_678,  # mJ
    "UtilizationRates": SimpleNamespace(gpu=98, memory=40),
    "MemoryInfo": SimpleNamespace(used=3 * 2**30),
    "ComputeRunningProcesses": [],
    "CurrentClocksEventReasons": 0,
    "ClockInfo": {1: 1380, 2: 877},  # of multiprocessors and memory
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
    "VbiosVersion": "88.00",
    "P2PStatus": 1,
    "NvLinkState": 0,
    "TopologyCommonAncestor": 30,
}


@pytest.fixture
def nvml():
    """nvml(**answers) -> a module like pynvml for two cards; what is answered by an exception is raised."""
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
        library.nvmlDeviceGetHandleByIndex = lambda index: f"card {index}"
        library.nvmlDeviceGetHandleByPciBusId = lambda address: f"card at {address.decode()}"
        for name in (*WORKING, "FanSpeed"):
            answer = (WORKING | answers).get(name, real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED))
            setattr(library, f"nvmlDeviceGet{name}", _answering(answer))
        return library

    return make


def _answering(answer):
    def ask(card, *about):
        if isinstance(answer, Exception):
            raise answer
        return answer[about[0]] if isinstance(answer, dict) else answer

    return ask
