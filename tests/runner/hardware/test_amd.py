"""Sensors of AMD GPUs, with the return values of amdsmi 7.0.2."""

import pytest

from timetrial.runner.hardware.amd import AmdSmiSensors
from timetrial.runner.hardware.readings import LinkReading, PcieLink


def test_reading_has_standard_units(smi):
    reading = AmdSmiSensors(smi()).read(0)
    assert (reading.power_watts, reading.power_cap_watts) == (300, 500)  # the mean, if the current power is unknown
    assert reading.energy_joules == pytest.approx(30.6)
    assert (reading.core_mhz, reading.utilization_percent, reading.memory_mib, reading.temperature_c) == (
        1700,
        99,
        1234,
        55,
    )
    assert (reading.throttle_reasons, reading.ecc_uncorrected, reading.fan_percent, reading.other_processes) == (
        "thermal",
        2,
        None,
        0,
    )


def test_unknown_values_are_none(smi):
    reading = AmdSmiSensors(
        smi(gpu_activity={"gfx_activity": 0xFFFF}, violation_status={}, clock_info={"clk": "N/A"})
    ).read(0)
    assert (reading.utilization_percent, reading.throttle_reasons, reading.core_mhz) == (None, None, None)


def test_gpus_are_selected_by_pci_address(smi):
    sensors = AmdSmiSensors(smi(), ["0000:c6:00.0"])
    assert len(sensors) == 1
    assert sensors.describe(0)["capability"] == "gfx90a"
    assert sensors.describe(0)["numa_node"] == 1
    assert AmdSmiSensors(smi()).links() == {"0-1": "XGMI, 1 hops"}
    with pytest.raises(LookupError):
        AmdSmiSensors(smi(), ["0000:01:00.0"])


def test_fan_speed_is_relative_to_255(smi):
    library = smi()
    library.amdsmi_get_gpu_fan_speed = lambda gpu, sensor: 51
    assert AmdSmiSensors(library).read(0).fan_percent == pytest.approx(20)


def test_missing_functions_of_older_versions_are_skipped(smi):
    library = smi()
    del library.amdsmi_get_violation_status, library.AmdSmiLinkType
    sensors = AmdSmiSensors(library)
    assert sensors.read(0).power_watts == 300
    assert sensors.read(0).throttle_reasons is None
    assert sensors.links() == {"0-1": "unknown, 1 hops"}
    library.amdsmi_get_violation_status = lambda gpu: {"active_ppt_pwr": "N/A", "active_socket_thrm": "N/A"}
    assert sensors.read(0).throttle_reasons is None


def test_links_to_the_host_and_to_other_gpus(smi):
    library = smi(gpu_xgmi_link_status={"status": ["U", "D", "U", "X"], "total_links": 4})
    statuses = iter([1, 0, 2])
    library.amdsmi_gpu_xgmi_error_status = lambda gpu: next(statuses)  # the driver clears it
    sensors = AmdSmiSensors(library)
    reading = sensors.read_links(0)
    assert (reading.pcie, reading.pcie_of_gpu) == (PcieLink(4, 16), PcieLink(5, 16))
    assert (reading.pcie_replays, reading.peer_links) == (4, (True, False, True))
    counts = [reading.peer_errors, *(sensors.read_links(0).peer_errors for _ in range(2))]
    assert counts == [{"XGMI": 1}, {"XGMI": 1}, {"XGMI": 3}]
    library.amdsmi_gpu_xgmi_error_status = lambda gpu: "N/A"
    assert sensors.read_links(0).peer_errors is None


@pytest.mark.parametrize(("speed", "generation"), [(16000, 4), (32, 5), ("N/A", None), (0, None)])
def test_the_generation_follows_from_the_speed_in_either_unit(smi, speed, generation):
    library = smi(pcie_info={"pcie_metric": {"pcie_speed": speed, "pcie_width": 0xFFFF}})
    reading = AmdSmiSensors(library).read_links(0)
    assert reading == LinkReading(pcie=PcieLink(generation, None))
