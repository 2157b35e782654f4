"""Sensors of NVIDIA GPUs: units, throttle reasons, unsupported queries, owners of processes."""

import os
from types import SimpleNamespace

import pynvml
import pytest

from timetrial.runner.hardware import host
from timetrial.runner.hardware.nvml import NvmlSensors
from timetrial.runner.hardware.readings import LinkReading, PcieLink

UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_reading_has_standard_units(nvml):
    reading = NvmlSensors(nvml()).read(0)
    assert (reading.core_mhz, reading.memory_mhz, reading.utilization_percent) == (1380, 877, 98)
    assert (reading.memory_mib, reading.temperature_c) == (3072, 61)
    assert (reading.power_watts, reading.power_cap_watts) == (231, 200)
    assert reading.energy_joules == pytest.approx(12345.678)
    assert (reading.pcie_sent_mb_s, reading.pcie_received_mb_s) == (pytest.approx(1024), pytest.approx(2048))
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (3, 0)
    assert reading.fan_percent is None  # not supported by a GPU without a fan
    assert reading.throttle_reasons == ""


@pytest.mark.parametrize(
    ("capability", "seconds"), [((7, 0), None), ((8, 0), None), ((8, 6), 1.0), ((9, 0), 1.0), ((12, 0), 1.0)]
)
def test_newer_gpus_report_power_as_the_mean_of_a_second(nvml, capability, seconds):
    assert NvmlSensors(nvml(CudaComputeCapability=capability)).read(0).power_averaging_seconds == seconds


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (pynvml.nvmlClocksEventReasonGpuIdle, ""),
        (pynvml.nvmlClocksEventReasonSwPowerCap, "power"),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap, "power+thermal"),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hardware"),
    ],
)
def test_throttle_reasons_are_grouped(nvml, bits, expected):
    assert NvmlSensors(nvml(CurrentClocksEventReasons=bits)).read(0).throttle_reasons == expected


def test_unsupported_queries_are_none(nvml):
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    names = ["TotalEnergyConsumption", "UtilizationRates", "MemoryInfo", "ComputeRunningProcesses", "ClockInfo"]
    names += ["CurrentClocksEventReasons", "PowerUsage", "EnforcedPowerLimit", "PcieThroughput", "TotalEccErrors"]
    reading = NvmlSensors(nvml(**dict.fromkeys([*names, "Temperature"], lost))).read(1)
    assert set(vars(reading).values()) == {None}


def test_processes_of_this_run_are_not_other_processes(nvml):
    def count(*pids, ranks=()):
        library = nvml(ComputeRunningProcesses=[SimpleNamespace(pid=pid) for pid in pids])
        return NvmlSensors(library, ranks=ranks).read(0).other_processes

    assert count(os.getpid()) == 0
    assert count(os.getpid(), 1) == (1 if os.getppid() != 1 else 0)
    assert count(2**22 + 1) == 0  # in a container the driver reports process ids of the host
    assert count(2**22 + 1, 2**22 + 2) == 1
    assert count() == 0
    # The ranks of a sweep and those of torchrun have different parents.
    assert count(1, os.getpid(), ranks=[1, os.getpid()]) == 0


def test_constant_facts_and_links(nvml):
    sensors = NvmlSensors(nvml(), ["0000:3b:00.0", "0000:af:00.0"])
    facts = sensors.describe(0)
    assert (facts["capability"], facts["driver"], facts["driver_runtime"]) == ("7.0", "535.104", "12.2")
    assert (facts["power_cap_watts"], facts["default_power_cap_watts"]) == (200, 250)
    assert (facts["persistence_mode"], facts["ecc_enabled"]) == (False, True)
    assert facts["pcie"] == {"generation": 3, "width": 16}
    assert sensors.links() == {"0-1": "one host bridge"}
    linked = NvmlSensors(nvml(P2PStatus=pynvml.NVML_P2P_STATUS_OK, NvLinkState=1))
    assert linked.links() == {"0-1": "NVLink, 18 links per GPU"}


def test_links_to_the_host_and_to_other_gpus(nvml, monkeypatch):
    monkeypatch.setattr(host, "max_pcie_width", {"0000:3B:00.0": 16}.get)
    monkeypatch.setattr(host, "slot_width", {"0000:3B:00.0": 8}.get)
    errors = {"REPLAY": 1, "RECOVERY": 2, "CRC_FLIT": 10, "CRC_DATA": 20}
    counts = {getattr(pynvml, f"NVML_NVLINK_ERROR_DL_{kind}"): count for kind, count in errors.items()}
    library = nvml(
        CurrPcieLinkWidth=8, MaxPcieLinkWidth=8, NvLinkState={0: 1, 1: 0, 2: 1} | dict.fromkeys(range(3, 18), 0)
    )
    library.nvmlDeviceGetNvLinkErrorCounter = lambda gpu, link, counter: counts[counter] * (100 if link == 2 else 1)
    reading = NvmlSensors(library).read_links(0)
    assert (reading.pcie, reading.pcie_of_slot, reading.pcie_of_gpu) == (
        PcieLink(3, 8),
        PcieLink(3, 8),
        PcieLink(4, 16),
    )
    assert reading.pcie_replays == 7
    assert (len(reading.peer_links), [link for link, is_up in enumerate(reading.peer_links) if is_up]) == (18, [0, 2])
    assert reading.peer_errors == {"replay": 101, "recovery": 202, "CRC": 1010}


def test_nvlink_5_counts_errors_as_field_values(nvml):
    counts = {pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: 1, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS: 5}

    def values(gpu, fields):
        ((number, link),) = fields
        known = number in counts
        result = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=result, value=SimpleNamespace(ullVal=counts.get(number, 999) + link))]

    library = nvml(NvLinkState={0: 1, 1: 1} | dict.fromkeys(range(2, 18), 0))
    library.nvmlDeviceGetFieldValues = values
    assert NvmlSensors(library).read_links(0).peer_errors == {"recovery": 3, "receive": 11}


def test_links_that_gpu_or_library_do_not_report_are_none(nvml):
    names = ["NvLinkState", "PcieReplayCounter", "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PciInfo"]
    library = nvml(**dict.fromkeys([*names, "MaxPcieLinkGeneration", "MaxPcieLinkWidth"], UNSUPPORTED))
    del library.nvmlDeviceGetGpuMaxPcieLinkGeneration  # as in older versions of the library
    assert NvmlSensors(library).read_links(0) == LinkReading()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("SwThermalSlowdown", "thermal"), ("HwThermalSlowdown", "thermal"), ("HwSlowdown", "hardware")],
)
def test_each_nvml_reason_belongs_to_a_group(nvml, reason, expected):
    reasons = getattr(pynvml, f"nvmlClocksEventReason{reason}")
    assert NvmlSensors(nvml(CurrentClocksEventReasons=reasons)).read(0).throttle_reasons == expected


def test_ecc_errors_are_counted_from_driver_load(nvml):
    library = nvml()
    library.nvmlDeviceGetTotalEccErrors = lambda gpu, kind, counter: {pynvml.NVML_VOLATILE_ECC: 2}.get(counter, 900)
    assert NvmlSensors(library).read(0).ecc_uncorrected == 2


def test_reasons_under_the_name_of_older_drivers(nvml):
    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    slow = pynvml.nvmlClocksEventReasonHwSlowdown
    library = nvml(CurrentClocksEventReasons=unknown, CurrentClocksThrottleReasons=slow)
    assert NvmlSensors(library).read(0).throttle_reasons == "hardware"
