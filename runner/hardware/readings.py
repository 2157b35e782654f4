"""One sample of a GPU or of the host, whatever the vendor; None stands for what the tool does not report."""

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class GpuReading:
    """A GPU at one moment.

    `power_watts` is the mean over the last `power_averaging_seconds`, or instantaneous if that is None.
    `throttle_reasons` joins the reasons for lowered clocks by "+" (power, thermal, hardware; empty: none).
    `other_processes` counts processes that do not belong to this run. The ECC counts and `energy_joules` are counted
    from the time the driver was loaded.
    """

    core_mhz: float | None = None
    memory_mhz: float | None = None
    utilization_percent: float | None = None
    memory_mib: float | None = None
    temperature_c: float | None = None
    fan_percent: float | None = None
    power_watts: float | None = None
    power_averaging_seconds: float | None = None
    power_cap_watts: float | None = None
    throttle_reasons: str | None = None
    pcie_sent_mb_s: float | None = None
    pcie_received_mb_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    other_processes: int | None = None
    energy_joules: float | None = None


@dataclass(frozen=True)
class HostReading:
    """The host at one moment.

    `host_energy_joules` is the energy of packages and DRAM since the first reading. The run may use
    `usable_processors` at once, by its CPU affinity and the CPU limit of its cgroup. `idle_cpu_seconds` is the time
    since boot in which the processors of its affinity executed no process, and `run_cpu_seconds` the processor time of
    the run's processes on this host.
    """

    cpu_percent: float | None = None
    host_memory_mib: float | None = None
    disk_read_mb_s: float | None = None
    disk_write_mb_s: float | None = None
    host_energy_joules: float | None = None
    usable_processors: float | None = None
    idle_cpu_seconds: float | None = None
    run_cpu_seconds: float | None = None


@dataclass(frozen=True)
class PcieLink:
    """Generation and number of lanes of a PCI Express link."""

    generation: int | None = None
    width: int | None = None


@dataclass(frozen=True)
class LinkReading:
    """The links of a GPU at one moment.

    `pcie` is the link to the host as it is in use, which idle GPUs lower; `pcie_of_slot` is what GPU and slot can do
    together, and `pcie_of_gpu` what the GPU can do. `peer_links` says of each link to other GPUs (NVLink, XGMI) whether
    it is up; None without such links. Errors are counted from the time the driver was loaded or an earlier time,
    `peer_errors` by kind over all links.
    """

    pcie: PcieLink = field(default_factory=PcieLink)
    pcie_of_slot: PcieLink = field(default_factory=PcieLink)
    pcie_of_gpu: PcieLink = field(default_factory=PcieLink)
    pcie_replays: int | None = None
    peer_links: tuple[bool, ...] | None = None
    peer_errors: dict[str, int] | None = None


class GpuSensors(Protocol):
    """Some GPUs through their vendor's management library, named by `source`."""

    source: str

    def __len__(self) -> int: ...

    def read(self, index: int) -> GpuReading:
        """Return a sample of GPU `index`; quick, and never raises."""
        ...

    def describe(self, index: int) -> dict[str, Any]:
        """Return constant facts: name, driver, power cap and its default, maximum clocks, persistence, ECC, PCIe."""
        ...

    def read_links(self, index: int) -> LinkReading:
        """Return the state and the error counts of the links of GPU `index`; never raises."""
        ...

    def links(self) -> dict[str, str]:
        """Return the kind of link between each pair of GPUs, keyed like "0-1"; empty if the tool does not report it."""
        ...

    def close(self) -> None:
        """Release the management library."""
        ...
