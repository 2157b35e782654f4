"""Sensors of NVIDIA GPUs through NVML (the optional package nvidia-ml-py)."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

from . import host
from .readings import GpuReading, LinkReading, PcieLink

_MAX_NVLINKS = 18
# From this compute capability on, nvmlDeviceGetPowerUsage reports a mean over the last second (NVML documentation).
_AVERAGED_POWER = (8, 6)
# Error counters of a link by the kind that we report: those of nvmlDeviceGetNvLinkErrorCounter, and from NVLink 5 on
# those of nvmlDeviceGetFieldValues. As in nvidia-smi nvlink -e, the CRC of lanes (CRC_DATA) is not among them: it grows
# on the idle links of healthy H200s.
_NVLINK_ERRORS = {
    "replay": ("NVLINK_ERROR_DL_REPLAY",),
    "recovery": ("NVLINK_ERROR_DL_RECOVERY",),
    "CRC": ("NVLINK_ERROR_DL_CRC_FLIT",),
}
_NVLINK_5_ERRORS = {
    "recovery": ("FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",),
    "receive": ("FI_DEV_NVLINK_COUNT_RCV_ERRORS",),
    "integrity": ("FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",),
}
# NVML's reasons for lowered clocks, grouped. A GPU at its power cap runs as designed.
_THROTTLE_REASONS = {
    "power": ("SwPowerCap",),
    "thermal": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "hardware": ("HwSlowdown", "HwPowerBrakeSlowdown"),
}


class NvmlSensors:
    """The GPUs at the given PCI addresses, by default all; `library` is the module pynvml.

    The processes `ranks` belong to this run.
    Raises the library's own error if there is no driver.
    """

    source = "NVML"

    def __init__(
        self, library: ModuleType | Any, addresses: Sequence[str] | None = None, ranks: Collection[int] = ()
    ) -> None:
        self._nvml, self._ranks = library, ranks
        library.nvmlInit()
        if addresses is None:
            count = library.nvmlDeviceGetCount()
            self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        else:
            self._handles = [library.nvmlDeviceGetHandleByPciBusId(address.encode()) for address in addresses]
        capabilities = [self._query("CudaComputeCapability", gpu) for gpu in self._handles]
        self._averaging_seconds = [
            1.0 if capability and tuple(capability) >= _AVERAGED_POWER else None for capability in capabilities
        ]

    def __len__(self) -> int:
        return len(self._handles)

    def read(self, index: int) -> GpuReading:
        """Return a sample of GPU `index`; NVML measures each direction of PCIe for 20 ms."""
        nvml, gpu = self._nvml, self._handles[index]
        energy = self._query("TotalEnergyConsumption", gpu)  # first: it belongs to the time of the sample
        utilization, memory = self._query("UtilizationRates", gpu), self._query("MemoryInfo", gpu)
        processes = self._query("ComputeRunningProcesses", gpu)
        pids = None if processes is None else [process.pid for process in processes]
        reasons = self._query("CurrentClocksEventReasons", gpu)
        if reasons is None:  # its name in drivers before 535
            reasons = self._query("CurrentClocksThrottleReasons", gpu)
        return GpuReading(
            core_mhz=self._query("ClockInfo", gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=self._query("ClockInfo", gpu, nvml.NVML_CLOCK_MEM),
            utilization_percent=utilization.gpu if utilization else None,
            memory_mib=memory.used / 2**20 if memory else None,
            temperature_c=self._query("Temperature", gpu, nvml.NVML_TEMPERATURE_GPU),
            fan_percent=self._query("FanSpeed", gpu),
            power_watts=_scaled(self._query("PowerUsage", gpu), 1e-3),
            power_averaging_seconds=self._averaging_seconds[index],
            power_cap_watts=_scaled(self._query("EnforcedPowerLimit", gpu), 1e-3),
            throttle_reasons=None if reasons is None else self._group_reasons(reasons),
            pcie_sent_mb_s=_scaled(self._query("PcieThroughput", gpu, nvml.NVML_PCIE_UTIL_TX_BYTES), 1.024e-3),
            pcie_received_mb_s=_scaled(self._query("PcieThroughput", gpu, nvml.NVML_PCIE_UTIL_RX_BYTES), 1.024e-3),
            ecc_corrected=self._ecc_errors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._ecc_errors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            other_processes=None if pids is None else host.count_other_processes(pids, self._ranks),
            energy_joules=_scaled(energy, 1e-3),
        )

    def describe(self, index: int) -> dict[str, Any]:
        """Return constant facts of GPU `index`."""
        nvml, gpu = self._nvml, self._handles[index]
        ecc, address = self._query("EccMode", gpu), self._query("PciInfo", gpu)
        capability = self._query("CudaComputeCapability", gpu)
        runtime = nvml.nvmlSystemGetCudaDriverVersion()
        return {
            "name": self._query("Name", gpu),
            "capability": "{}.{}".format(*capability) if capability else None,
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "driver_runtime": f"{runtime // 1000}.{runtime % 1000 // 10}",
            "firmware": self._query("VbiosVersion", gpu),
            "power_cap_watts": _scaled(self._query("EnforcedPowerLimit", gpu), 1e-3),
            "default_power_cap_watts": _scaled(self._query("PowerManagementDefaultLimit", gpu), 1e-3),
            "max_core_mhz": self._query("MaxClockInfo", gpu, nvml.NVML_CLOCK_SM),
            "max_memory_mhz": self._query("MaxClockInfo", gpu, nvml.NVML_CLOCK_MEM),
            "persistence_mode": _to_bool(self._query("PersistenceMode", gpu)),
            "ecc_enabled": _to_bool(ecc[0]) if ecc else None,
            "pcie": asdict(self._pcie_link(gpu)),
            "numa_node": host.numa_node(address.busId[-12:]) if address else None,
        }

    def read_links(self, index: int) -> LinkReading:
        """Return the links of GPU `index`."""
        gpu = self._handles[index]
        address = self._query("PciInfo", gpu)
        states = {number: self._query("NvLinkState", gpu, number) for number in range(_MAX_NVLINKS)}
        states = {number: state for number, state in states.items() if state is not None}
        width = host.max_pcie_width(address.busId[-12:]) if address else None
        slot_width = host.slot_width(address.busId[-12:]) if address else None
        return LinkReading(
            pcie=self._pcie_link(gpu),
            pcie_of_slot=PcieLink(  # NVML's own width is often the GPU's, whatever the slot has
                self._query("MaxPcieLinkGeneration", gpu), min(width, slot_width) if width and slot_width else None
            ),
            pcie_of_gpu=PcieLink(self._query("GpuMaxPcieLinkGeneration", gpu), width),
            pcie_replays=self._query("PcieReplayCounter", gpu),
            peer_links=tuple(map(bool, states.values())) or None,
            peer_errors=self._nvlink_errors(gpu, [number for number, state in states.items() if state]),
        )

    def _pcie_link(self, gpu: Any) -> PcieLink:
        """Return the link in use."""
        return PcieLink(self._query("CurrPcieLinkGeneration", gpu), self._query("CurrPcieLinkWidth", gpu))

    def _nvlink_errors(self, gpu: Any, links: Sequence[int]) -> dict[str, int] | None:
        """Return the sum over `links` of each kind of errors that this generation of NVLink counts."""
        for kinds, count in ((_NVLINK_ERRORS, self._count_errors), (_NVLINK_5_ERRORS, self._count_field)):
            errors = {}
            for kind, names in kinds.items():
                numbers = [getattr(self._nvml, f"NVML_{name}", None) for name in names]  # older libraries have fewer
                counts = [count(gpu, link, number) for link in links for number in numbers if number is not None]
                if known := [value for value in counts if value is not None]:
                    errors[kind] = sum(known)
            if errors:
                return errors
        return None

    def _count_errors(self, gpu: Any, link: int, counter: int) -> int | None:
        return self._query("NvLinkErrorCounter", gpu, link, counter)

    def _count_field(self, gpu: Any, link: int, number: int) -> int | None:
        for field in self._query("FieldValues", gpu, [(number, link)]) or ():
            if field.nvmlReturn == self._nvml.NVML_SUCCESS:
                return field.value.ullVal
        return None

    def links(self) -> dict[str, str]:
        """Return NVLink for each pair of GPUs that has it, else their closest common PCI ancestor."""
        nvml, links = self._nvml, {}
        ancestors = {
            nvml.NVML_TOPOLOGY_INTERNAL: "one board",
            nvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
            nvml.NVML_TOPOLOGY_MULTIPLE: "multiple PCIe switches",
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: "one host bridge",
            nvml.NVML_TOPOLOGY_NODE: "one NUMA node",
            nvml.NVML_TOPOLOGY_SYSTEM: "the link between CPU sockets",
        }
        for first, second in itertools.combinations(range(len(self)), 2):
            pair = self._handles[first], self._handles[second]
            if self._query("P2PStatus", *pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
                states = [self._query("NvLinkState", pair[0], number) for number in range(_MAX_NVLINKS)]
                links[f"{first}-{second}"] = f"NVLink, {sum(map(bool, states))} links per GPU"
            else:
                ancestor = self._query("TopologyCommonAncestor", *pair)
                links[f"{first}-{second}"] = ancestors.get(ancestor, "unknown")
        return links

    def close(self) -> None:
        """Shut NVML down."""
        self._nvml.nvmlShutdown()

    def _query(self, name: str, *arguments: Any) -> Any:
        """Return the result of nvmlDeviceGet<name>, or None if GPU, driver or library does not support it."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{name}")(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _ecc_errors(self, gpu: Any, kind: int) -> int | None:
        return self._query("TotalEccErrors", gpu, kind, self._nvml.NVML_VOLATILE_ECC)

    def _group_reasons(self, reasons: int) -> str:
        def mask(names: Sequence[str]) -> int:
            return sum(getattr(self._nvml, f"nvmlClocksEventReason{name}") for name in names)

        return "+".join(group for group, names in _THROTTLE_REASONS.items() if reasons & mask(names))


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _to_bool(value: Any) -> bool | None:
    return None if value is None else bool(value)
