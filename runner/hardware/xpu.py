"""Sensors of Intel GPUs through the command xpu-smi, which uses Level Zero."""

import csv
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import host
from .readings import GpuReading, LinkReading, PcieLink

COMMAND = "xpu-smi"
_TIMEOUT_SECONDS = 20.0
# Metrics of `xpu-smi dump` by number; the output names them in its header.
_METRICS = "0,1,2,3,8,15,16,18,19,20,35"
_COLUMNS = {
    "utilization_percent": "GPU Utilization (%)",
    "power_watts": "GPU Power (W)",
    "core_mhz": "GPU Frequency (MHz)",
    "temperature_c": "GPU Core Temperature",
    "energy_joules": "GPU Energy Consumed (J)",
    "ecc_corrected": "Cache Errors Correctable",
    "ecc_uncorrected": "Cache Errors Uncorrectable",
    "memory_mib": "GPU Memory Used (MiB)",
    "pcie_received_mb_s": "PCIe Read (kB/s)",
    "pcie_sent_mb_s": "PCIe Write (kB/s)",
}
_THROTTLE_REASONS = {
    "power": ("power", "current"),
    "thermal": ("thermal", "temp", "prochot"),
    "hardware": ("voltage", "hw"),
}


def _run(*arguments: str) -> str:
    completed = subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return completed.stdout


def _stream(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    )


class XpuSmiSensors:
    """The GPUs at the given PCI addresses, by default all; `run` and `stream` start the command.

    A thread reads what the command prints once a second, so that a sample costs nothing. Raises `OSError` if the
    command is missing, `subprocess.SubprocessError` or `ValueError` if it finds no driver.
    """

    source = COMMAND

    def __init__(
        self,
        addresses: Sequence[str] | None = None,
        run: Callable[..., str] = _run,
        stream: Callable[..., Any] = _stream,
    ) -> None:
        if run is _run and not shutil.which(COMMAND):
            raise FileNotFoundError(COMMAND)
        self._run, self._stream = run, stream
        self._process: Any = None
        gpus = json.loads(run("discovery", "-j")).get("device_list", [])
        ids = {gpu["pci_bdf_address"].lower(): gpu["device_id"] for gpu in gpus}
        self._ids = list(ids.values()) if addresses is None else [ids[address.lower()] for address in addresses]
        self._latest: dict[int, GpuReading] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, index: int) -> GpuReading:
        """Return the latest sample of GPU `index`; empty before the command's first line."""
        if self._process is None:
            self._process = self._stream("dump", "-d", "-1", "--metrics", _METRICS)  # once a second by default
            threading.Thread(target=self._follow, args=(self._process.stdout,), daemon=True).start()
        return self._latest.get(self._ids[index], GpuReading())

    def describe(self, index: int) -> dict[str, Any]:
        """Return constant facts of GPU `index`."""
        facts = json.loads(self._run("discovery", "-d", str(self._ids[index]), "-j"))
        address = str(facts.get("pci_bdf_address", ""))
        return {
            "name": facts.get("device_name"),
            "driver": facts.get("driver_version"),
            "firmware": facts.get("gfx_firmware_version"),
            "max_core_mhz": _to_float(facts.get("core_clock_rate_mhz")),
            "pcie": {
                "generation": _to_float(facts.get("pcie_generation")),
                "width": _to_float(facts.get("pcie_max_link_width")),
            },
            "numa_node": host.numa_node(address) if address else None,
        }

    def read_links(self, index: int) -> LinkReading:
        """Return what the GPU's link can do; xpu-smi reports neither its state nor its errors."""
        try:
            pcie = self.describe(index)["pcie"]
        except (OSError, ValueError, subprocess.SubprocessError):
            return LinkReading()
        generation, width = (None if value is None else int(value) for value in pcie.values())
        return LinkReading(pcie_of_gpu=PcieLink(generation, width))

    def links(self) -> dict[str, str]:
        """Return nothing: xpu-smi prints its topology only as a table for people."""
        return {}

    def close(self) -> None:
        """End the command."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _follow(self, lines: Iterable[str]) -> None:
        """Keep the latest sample of each GPU while the command runs."""
        try:
            self._parse(lines)
        finally:
            self._latest.clear()  # samples of an ended command are stale

    def _parse(self, lines: Iterable[str]) -> None:
        """Parse the CSV lines of `dump`, which repeats its header at intervals."""
        header: list[str] = []
        for row in csv.reader(lines, skipinitialspace=True):
            if "DeviceId" in row:
                header = [title.strip() for title in row]
            elif len(row) == len(header):
                fields = dict(zip(header, (value.strip() for value in row), strict=True))
                device_id = _to_float(fields.get("DeviceId"))
                if device_id is not None:
                    self._latest[int(device_id)] = _parse_reading(fields)


def _parse_reading(fields: dict[str, str]) -> GpuReading:
    def column(prefix: str) -> float | None:
        return next((_to_float(value) for title, value in fields.items() if title.startswith(prefix)), None)

    values: dict[str, Any] = {name: column(prefix) for name, prefix in _COLUMNS.items()}
    for name in ("pcie_received_mb_s", "pcie_sent_mb_s"):
        values[name] = None if values[name] is None else values[name] / 1e3
    for name in ("ecc_corrected", "ecc_uncorrected"):
        values[name] = None if values[name] is None else int(values[name])
    text = next((value.lower() for title, value in fields.items() if title.startswith("Throttle")), None)
    reasons = None
    if text not in (None, "", "n/a"):
        groups = _THROTTLE_REASONS.items()
        reasons = "+".join(group for group, parts in groups if any(part in str(text) for part in parts))
    return GpuReading(**values, throttle_reasons=reasons)


def _to_float(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
