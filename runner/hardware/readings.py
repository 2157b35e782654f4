"""One look at a card or at its host, whoever made it; None is what nobody tells."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class CardReading:
    """A card at one moment.

    `power_watts` is a mean over the last `watts_over_seconds`, or of the moment where that is None. `throttle` joins
    the reasons for lower clocks by "+" (power, thermal, hardware; empty: none), `neighbours` counts processes that are
    not of this run, errors and `energy_joules` count since the driver was loaded.
    """

    core_mhz: float | None = None
    memory_mhz: float | None = None
    load_percent: float | None = None
    memory_mib: float | None = None
    temperature_c: float | None = None
    fan_percent: float | None = None
    power_watts: float | None = None
    watts_over_seconds: float | None = None
    power_cap_watts: float | None = None
    throttle: str | None = None
    pcie_sent_mb_s: float | None = None
    pcie_received_mb_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    neighbours: int | None = None
    energy_joules: float | None = None


@dataclass(frozen=True)
class HostReading:
    """The host at one moment; `host_energy_joules` is that of processors and their memory since the first look."""

    cpu_percent: float | None = None
    host_memory_mib: float | None = None
    disk_read_mb_s: float | None = None
    disk_write_mb_s: float | None = None
    host_energy_joules: float | None = None


class Cards(Protocol):
    """Some cards through their vendor's own tool, which `source` names; `read` must be quick, and never raises."""

    source: str

    def __len__(self) -> int: ...

    def read(self, index: int) -> CardReading:
        """What the card of this index shows now."""
        ...

    def describe(self, index: int) -> dict[str, Any]:
        """What stays: name, driver, power cap and its default, highest clocks, persistence, error correction, bus."""
        ...

    def links(self) -> dict[str, str]:
        """How two cards reach one another, by "0-1"; empty where the tool does not tell."""
        ...

    def close(self) -> None:
        """Lets go of the tool."""
        ...
