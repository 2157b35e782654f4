"""NVIDIA's cards: units, reasons, what is not supported, whose processes are whose."""

import os
from types import SimpleNamespace

import pynvml
import pytest

from timetrial.runner.hardware.nvml import Nvml


def test_a_look_has_our_units(nvml):
    now = Nvml(nvml()).read(0)
    assert (now.core_mhz, now.memory_mhz, now.load_percent) == (1380, 877, 98)
    assert (now.memory_mib, now.temperature_c) == (3072, 61)
    assert (now.power_watts, now.power_cap_watts) == (231, 200)
    assert now.energy_joules == pytest.approx(12345.678)
    assert (now.pcie_sent_mb_s, now.pcie_received_mb_s) == (pytest.approx(1024), pytest.approx(2048))
    assert (now.ecc_corrected, now.ecc_uncorrected) == (3, 0)
    assert now.fan_percent is None  # a card without a fan answers that it is not supported
    assert now.throttle == ""


@pytest.mark.parametrize(
    ("capability", "seconds"), [((7, 0), None), ((8, 0), None), ((8, 6), 1.0), ((9, 0), 1.0), ((12, 0), 1.0)]
)
def test_newer_cards_tell_the_mean_of_a_second(nvml, capability, seconds):
    assert Nvml(nvml(CudaComputeCapability=capability)).read(0).watts_over_seconds == seconds


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (pynvml.nvmlClocksEventReasonGpuIdle, ""),
        (pynvml.nvmlClocksEventReasonSwPowerCap, "power"),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap, "power+thermal"),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hardware"),
    ],
)
def test_reasons_are_words(nvml, reasons, words):
    assert Nvml(nvml(CurrentClocksEventReasons=reasons)).read(0).throttle == words


def test_an_old_driver_answers_nothing_and_nothing_breaks(nvml):
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    names = ["TotalEnergyConsumption", "UtilizationRates", "MemoryInfo", "ComputeRunningProcesses", "ClockInfo"]
    names += ["CurrentClocksEventReasons", "PowerUsage", "EnforcedPowerLimit", "PcieThroughput", "TotalEccErrors"]
    now = Nvml(nvml(**dict.fromkeys([*names, "Temperature"], lost))).read(1)
    assert set(vars(now).values()) == {None}


def test_processes_of_this_run_are_no_neighbours(nvml):
    def running(*processes):
        return Nvml(nvml(ComputeRunningProcesses=[SimpleNamespace(pid=pid) for pid in processes])).read(0).neighbours

    assert running(os.getpid()) == 0
    assert running(os.getpid(), 1) == (1 if os.getppid() != 1 else 0)
    assert running(2**22 + 1) == 0  # in a container the card knows us by a number that we do not
    assert running(2**22 + 1, 2**22 + 2) == 1
    assert running() == 0


def test_what_stays_and_how_cards_are_linked(nvml):
    cards = Nvml(nvml(), ["0000:3b:00.0", "0000:af:00.0"])
    facts = cards.describe(0)
    assert (facts["capability"], facts["driver"], facts["driver_runtime"]) == ("7.0", "535.104", "12.2")
    assert (facts["power_cap_watts"], facts["default_power_cap_watts"]) == (200, 250)
    assert (facts["persistence"], facts["error_correction"]) == (False, True)
    assert facts["bus"] == {"generation": 3, "width": 16}
    assert cards.links() == {"0-1": "one host bridge"}
    linked = Nvml(nvml(P2PStatus=pynvml.NVML_P2P_STATUS_OK, NvLinkState=1))
    assert linked.links() == {"0-1": "NVLink, 18 links a card"}


@pytest.mark.parametrize(
    ("reason", "word"),
    [("SwThermalSlowdown", "thermal"), ("HwThermalSlowdown", "thermal"), ("HwSlowdown", "hardware")],
)
def test_every_reason_has_its_word(nvml, reason, word):
    reasons = getattr(pynvml, f"nvmlClocksEventReason{reason}")
    assert Nvml(nvml(CurrentClocksEventReasons=reasons)).read(0).throttle == word


def test_errors_are_those_since_the_driver_was_loaded(nvml):
    library = nvml()
    library.nvmlDeviceGetTotalEccErrors = lambda card, kind, counter: {pynvml.NVML_VOLATILE_ECC: 2}.get(counter, 900)
    assert Nvml(library).read(0).ecc_uncorrected == 2


def test_an_older_driver_has_another_name_for_its_reasons(nvml):
    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    slow = pynvml.nvmlClocksEventReasonHwSlowdown
    library = nvml(CurrentClocksEventReasons=unknown, CurrentClocksThrottleReasons=slow)
    assert Nvml(library).read(0).throttle == "hardware"
