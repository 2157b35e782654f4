"""Intel's cards through the command xpu-smi, which asks Level Zero."""

import csv
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import host
from .readings import CardReading

COMMAND = "xpu-smi"
_PATIENCE_SECONDS = 20.0
# Numbers of the metrics that `dump` is asked for; its columns name them.
_METRICS = "0,1,2,3,8,15,16,18,19,20,35"
_COLUMNS = {
    "load_percent": "GPU Utilization (%)",
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
_REASONS = {"power": ("power", "current"), "thermal": ("thermal", "temp", "prochot"), "hardware": ("voltage", "hw")}


def _run(*words: str) -> str:
    done = subprocess.run(
        [COMMAND, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=_PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def _stream(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    )


class Xpu:
    """The cards at these PCI addresses, all where none are named; `run` and `stream` start the command.

    A thread reads what the command prints each second, so that a look costs nothing. Raises `OSError` where there is no
    such command, `subprocess.SubprocessError` or `ValueError` where it finds no driver.
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
        found = json.loads(run("discovery", "-j")).get("device_list", [])
        at = {entry["pci_bdf_address"].lower(): entry["device_id"] for entry in found}
        self._cards = list(at.values()) if addresses is None else [at[address.lower()] for address in addresses]
        self._latest: dict[int, CardReading] = {}

    def __len__(self) -> int:
        return len(self._cards)

    def read(self, index: int) -> CardReading:
        """What the command said last of the card of this index; nothing before its first line."""
        if self._process is None:
            self._process = self._stream("dump", "-d", "-1", "--metrics", _METRICS)  # each second, unless told
            threading.Thread(target=self._follow, args=(self._process.stdout,), daemon=True).start()
        return self._latest.get(self._cards[index], CardReading())

    def describe(self, index: int) -> dict[str, Any]:
        """What stays of the card of this index."""
        told = json.loads(self._run("discovery", "-d", str(self._cards[index]), "-j"))
        address = str(told.get("pci_bdf_address", ""))
        return {
            "name": told.get("device_name"),
            "driver": told.get("driver_version"),
            "firmware": told.get("gfx_firmware_version"),
            "highest_core_mhz": _number(told.get("core_clock_rate_mhz")),
            "bus": {
                "generation": _number(told.get("pcie_generation")),
                "width": _number(told.get("pcie_max_link_width")),
            },
            "numa_node": host.memory_node(address) if address else None,
        }

    def links(self) -> dict[str, str]:
        """Nothing: the command draws its matrix for people."""
        return {}

    def close(self) -> None:
        """Ends the command."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _follow(self, lines: Iterable[str]) -> None:
        """Keeps the last line of each card; the command repeats its header when it likes."""
        try:
            self._keep(lines)
        finally:
            self._latest.clear()  # what a dead command said last is no news

    def _keep(self, lines: Iterable[str]) -> None:
        header: list[str] = []
        for row in csv.reader(lines, skipinitialspace=True):
            if "DeviceId" in row:
                header = [title.strip() for title in row]
            elif len(row) == len(header):
                told = dict(zip(header, (value.strip() for value in row), strict=True))
                card = _number(told.get("DeviceId"))
                if card is not None:
                    self._latest[int(card)] = _reading(told)


def _reading(told: dict[str, str]) -> CardReading:
    def of(column: str) -> float | None:
        return next((_number(value) for title, value in told.items() if title.startswith(column)), None)

    known: dict[str, Any] = {name: of(column) for name, column in _COLUMNS.items()}
    for name in ("pcie_received_mb_s", "pcie_sent_mb_s"):
        known[name] = None if known[name] is None else known[name] / 1e3
    for name in ("ecc_corrected", "ecc_uncorrected"):
        known[name] = None if known[name] is None else int(known[name])
    reason = next((value.lower() for title, value in told.items() if title.startswith("Throttle")), None)
    words = None
    if reason not in (None, "", "n/a"):
        words = "+".join(word for word, parts in _REASONS.items() if any(part in str(reason) for part in parts))
    return CardReading(**known, throttle=words)


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
