"""Sensors of Intel GPUs, from the output of xpu-smi."""

import json
import threading
import time
from types import SimpleNamespace

from timetrial.runner.hardware.readings import LinkReading, PcieLink
from timetrial.runner.hardware.xpu import XpuSmiSensors

DISCOVERY = {
    "device_list": [
        {"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550", "pci_bdf_address": "0000:29:00.0"},
        {"device_id": 1, "device_name": "Intel(R) Data Center GPU Max 1550", "pci_bdf_address": "0000:3A:00.0"},
    ]
}
DEVICE = {
    "device_name": "Max 1550",
    "driver_version": "1.6",
    "core_clock_rate_mhz": "1600",
    "pcie_max_link_width": "16",
}
DUMP = """Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Core Temperature (Celsius \
Degree), GPU Energy Consumed (J), GPU Memory Used (MiB), PCIe Read (kB/s), PCIe Write (kB/s), Throttle reason
10:00:01.000, 0, 12.00, 100.5, 900, 40.0, 1000.0, 512.0, N/A, N/A, Not Throttled
10:00:01.000, 1, 99.00, 450.5, 1550, 62.5, 2000.5, 4096.0, 2000, 1000, Thermal Throttle
10:00:02.000, 1, 98.00, 451.5, 15"""


def test_latest_complete_line_of_each_gpu_is_returned():
    terminated, finish = [], threading.Event()

    def lines():
        yield from DUMP.splitlines()
        finish.wait(10)

    stream = SimpleNamespace(stdout=lines(), terminate=lambda: terminated.append(1), wait=lambda: None)
    run = lambda *arguments: json.dumps(DEVICE if "-d" in arguments else DISCOVERY)  # noqa: E731
    sensors = XpuSmiSensors(["0000:3a:00.0", "0000:29:00.0"], run, lambda *arguments: stream)
    sensors.read(0)
    for _ in range(100):
        if sensors.read(0).power_watts is not None:
            break
        time.sleep(0.01)
    reading = sensors.read(0)
    assert (reading.utilization_percent, reading.power_watts, reading.core_mhz, reading.energy_joules) == (
        99,
        450.5,
        1550,
        2000.5,
    )
    assert (reading.pcie_received_mb_s, reading.pcie_sent_mb_s, reading.temperature_c) == (2.0, 1.0, 62.5)
    assert (reading.throttle_reasons, sensors.read(1).throttle_reasons, sensors.read(1).pcie_sent_mb_s) == (
        "thermal",
        "",
        None,
    )
    assert sensors.describe(0)["max_core_mhz"] == 1600
    assert sensors.read_links(0) == LinkReading(pcie_of_gpu=PcieLink(None, 16))
    sensors.close()
    assert terminated == [1]
    finish.set()
    for _ in range(100):
        if sensors.read(0).power_watts is None:
            break
        time.sleep(0.01)
    assert set(vars(sensors.read(0)).values()) == {None}  # samples of an ended command are stale
