"""NVIDIA's cards through NVML (the optional package nvidia-ml-py)."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from . import host
from .readings import CardReading

_MOST_LINKS = 18
# From this compute capability on NVML's watts are a mean over the last second (its documentation of PowerUsage).
_MEAN_WATTS = (8, 6)
# Why clocks are lower than asked for, in our words; a card at its power cap does what it is built for.
_REASONS = {
    "power": ("SwPowerCap",),
    "thermal": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "hardware": ("HwSlowdown", "HwPowerBrakeSlowdown"),
}


class Nvml:
    """The cards at these PCI addresses, all where none are named; `library` is the module pynvml.

    Raises what the library raises where there is no driver.
    """

    source = "NVML"

    def __init__(self, library: ModuleType | Any, addresses: Sequence[str] | None = None) -> None:
        self._nvml = library
        library.nvmlInit()
        if addresses is None:
            count = library.nvmlDeviceGetCount()
            self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        else:
            self._handles = [library.nvmlDeviceGetHandleByPciBusId(address.encode()) for address in addresses]
        capabilities = [self._ask("CudaComputeCapability", card) for card in self._handles]
        self._watts_over = [1.0 if found and tuple(found) >= _MEAN_WATTS else None for found in capabilities]

    def __len__(self) -> int:
        return len(self._handles)

    def read(self, index: int) -> CardReading:
        """What the card of this index shows now; each direction of PCIe is watched for 20 ms."""
        nvml, card = self._nvml, self._handles[index]
        energy = self._ask("TotalEnergyConsumption", card)  # first, for it belongs to the moment
        load, memory = self._ask("UtilizationRates", card), self._ask("MemoryInfo", card)
        running = self._ask("ComputeRunningProcesses", card)
        reasons = self._ask("CurrentClocksEventReasons", card)
        if reasons is None:  # as drivers before 535 call it
            reasons = self._ask("CurrentClocksThrottleReasons", card)
        return CardReading(
            core_mhz=self._ask("ClockInfo", card, nvml.NVML_CLOCK_SM),
            memory_mhz=self._ask("ClockInfo", card, nvml.NVML_CLOCK_MEM),
            load_percent=load.gpu if load else None,
            memory_mib=memory.used / 2**20 if memory else None,
            temperature_c=self._ask("Temperature", card, nvml.NVML_TEMPERATURE_GPU),
            fan_percent=self._ask("FanSpeed", card),
            power_watts=_scaled(self._ask("PowerUsage", card), 1e-3),
            watts_over_seconds=self._watts_over[index],
            power_cap_watts=_scaled(self._ask("EnforcedPowerLimit", card), 1e-3),
            throttle=None if reasons is None else self._words(reasons),
            pcie_sent_mb_s=_scaled(self._ask("PcieThroughput", card, nvml.NVML_PCIE_UTIL_TX_BYTES), 1.024e-3),
            pcie_received_mb_s=_scaled(self._ask("PcieThroughput", card, nvml.NVML_PCIE_UTIL_RX_BYTES), 1.024e-3),
            ecc_corrected=self._errors(card, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._errors(card, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            neighbours=None if running is None else host.others(process.pid for process in running),
            energy_joules=_scaled(energy, 1e-3),
        )

    def describe(self, index: int) -> dict[str, Any]:
        """What stays of the card of this index."""
        nvml, card = self._nvml, self._handles[index]
        ecc, address = self._ask("EccMode", card), self._ask("PciInfo", card)
        capability = self._ask("CudaComputeCapability", card)
        runtime = nvml.nvmlSystemGetCudaDriverVersion()
        return {
            "name": self._ask("Name", card),
            "capability": "{}.{}".format(*capability) if capability else None,
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "driver_runtime": f"{runtime // 1000}.{runtime % 1000 // 10}",
            "firmware": self._ask("VbiosVersion", card),
            "power_cap_watts": _scaled(self._ask("EnforcedPowerLimit", card), 1e-3),
            "default_power_cap_watts": _scaled(self._ask("PowerManagementDefaultLimit", card), 1e-3),
            "highest_core_mhz": self._ask("MaxClockInfo", card, nvml.NVML_CLOCK_SM),
            "highest_memory_mhz": self._ask("MaxClockInfo", card, nvml.NVML_CLOCK_MEM),
            "persistence": _flag(self._ask("PersistenceMode", card)),
            "error_correction": _flag(ecc[0]) if ecc else None,
            "bus": {
                "generation": self._ask("CurrPcieLinkGeneration", card),
                "width": self._ask("CurrPcieLinkWidth", card),
            },
            "numa_node": host.memory_node(address.busId[-12:]) if address else None,
        }

    def links(self) -> dict[str, str]:
        """NVLink where two cards have it, else the PCI ancestor that they share."""
        nvml, found = self._nvml, {}
        words = {
            nvml.NVML_TOPOLOGY_INTERNAL: "one board",
            nvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
            nvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: "one host bridge",
            nvml.NVML_TOPOLOGY_NODE: "one memory node",
            nvml.NVML_TOPOLOGY_SYSTEM: "the link between processors",
        }
        for one in range(len(self)):
            for other in range(one + 1, len(self)):
                pair = self._handles[one], self._handles[other]
                direct = self._ask("P2PStatus", *pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK
                lanes = [self._ask("NvLinkState", pair[0], link) for link in range(_MOST_LINKS)] if direct else []
                shared = words.get(self._ask("TopologyCommonAncestor", *pair), "unknown")
                found[f"{one}-{other}"] = f"NVLink, {sum(map(bool, lanes))} links a card" if direct else shared
        return found

    def close(self) -> None:
        """Lets go of the library."""
        self._nvml.nvmlShutdown()

    def _ask(self, what: str, *arguments: Any) -> Any:
        """The answer, or None where card or driver has none."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(*arguments)
        except self._nvml.NVMLError:
            return None

    def _errors(self, card: Any, kind: int) -> int | None:
        return self._ask("TotalEccErrors", card, kind, self._nvml.NVML_VOLATILE_ECC)

    def _words(self, reasons: int) -> str:
        def bits(names: Sequence[str]) -> int:
            return sum(getattr(self._nvml, f"nvmlClocksEventReason{name}") for name in names)

        return "+".join(word for word, names in _REASONS.items() if reasons & bits(names))


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)
